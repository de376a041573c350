"""A client may not move coordinates that are important to the others.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak: Overcoming Forgetting in Federated Learning
on Non-IID Data (NeurIPS workshop 2019). Client s minimises

    F_s(w) + lambda sum_{j != s} (w - w_j)' diag(I_j) (w - w_j),

I_j the Fisher diagonal of client j at its last model w_j. With the hub's sums u = sum_j I_j and
v = sum_j I_j w_j and the client's own last terms taken out (u', v'), this is, up to a constant,
lambda sum_n (u'_n w_n^2 - 2 v'_n w_n). Note that lambda multiplies the whole quadratic (EWC: lambda/2).

Deviations. The sums are kept over all clients ever heard, so that partial participation works: a client
uploads the change of its terms, and the hub adds it (same bytes, constant memory). SGD is stable only
while lr * 2 lambda u' < 2, so the pull on a coordinate is capped at `2 lr lambda u' = stiffness`
(`stiffness: null` takes the cap away).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience import tree
from consilience.curvature import Kind
from consilience.errors import UserError
from consilience.numbers import is_zero
from consilience.objectives.base import Objective, Pass
from consilience.solver import check_non_negative
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Inbox, Setting
    from consilience.client import Client, Trained

FISHER, FISHER_PARAMS = "fisher", "fisher_params"
"""The groups that hold I and I*w: sums in a hub, the client's own in its memory, changes in an upload."""


@final
@dataclass(frozen=True)
class FisherElastic(Objective):
    """Adds `strength * sum over the other clients of (w - w_j)' diag(Fisher_j) (w - w_j)` to the loss."""

    name: ClassVar[str] = "fisher_elastic"
    strength: float = 1.0
    fisher: Kind = "per_sample_mean"
    stiffness: float | None = 1.0

    def __post_init__(self) -> None:
        check_non_negative(self, "strength")
        if isinstance(self.stiffness, float | int) and not self.stiffness > 0:
            raise UserError(f"FisherElastic: stiffness must be above 0 (or none), not {self.stiffness}")

    def init_hub(self, model: State) -> State:
        zeros = tree.zeros_like(model["params"])
        return {FISHER: zeros, FISHER_PARAMS: zeros}

    def init_memory(self, model: State) -> State:
        return self.init_hub(model)

    def download(self, hub: State) -> State:
        return {FISHER: hub[FISHER], FISHER_PARAMS: hub[FISHER_PARAMS]}

    def context(self, client: Client, down: State, memory: State) -> State:
        # Rounding may leave a tiny negative rest where only this client has importance.
        others = {name: value.clamp(min=0) for name, value in tree.sub(down[FISHER], memory[FISHER]).items()}
        others_params = tree.sub(down[FISHER_PARAMS], memory[FISHER_PARAMS])
        if self.stiffness is None or is_zero(self.strength):
            return {"others": others, "others_params": others_params}
        pull = 2 * client.solver.lr * self.strength / self.stiffness
        shrink = {name: 1 / torch.clamp(pull * value, min=1) for name, value in others.items()}
        return {"others": tree.mul(shrink, others), "others_params": tree.mul(shrink, others_params)}

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        if is_zero(self.strength):
            return None
        w, u, v = at.params, context["others"], context["others_params"]
        return self.strength * (tree.dot(u, tree.mul(w, w)) - 2 * tree.dot(v, w))

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        fisher = client.squared_gradients(trained.model, kind=self.fisher)
        now = {FISHER: fisher, FISHER_PARAMS: tree.mul(fisher, trained.model["params"])}
        change: dict[str, Params] = {group: tree.sub(now[group], memory[group]) for group in now}
        return change, now

    def absorb(self, hub: State, inbox: Inbox) -> State:
        return {group: tree.add(hub[group], inbox.sum(group)) for group in (FISHER, FISHER_PARAMS)}

    def refuse(self, setting: Setting) -> str | None:
        if setting.graph:
            return "its Fisher sums need one hub that hears every client, so it is not defined on a graph"
        return super().refuse(setting)
