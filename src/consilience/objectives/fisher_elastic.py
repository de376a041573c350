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

The authors propose to send only the largest entries of I: with `one_in: 10` those of one coordinate in ten
count, the others are 0. The change of a client's terms is then 0 but on the coordinates that count now or
counted last time, and travels as positions and two values each (fewer bytes from `one_in: 4` on). The hub's
sums go to clients whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import UserError
from consilience.learning.curvature import Kind
from consilience.objectives.base import Objective, Pass
from consilience.sweeping import check_non_negative, is_zero
from consilience.tree import concatenated, divided, largest, size_of, spread, taken
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client, Trained

FISHER, FISHER_PARAMS = "fisher", "fisher_params"
"""The groups that hold I and I*w: sums in a hub, the client's own in its memory, changes in an upload."""
PACKED, POSITIONS = "fisher_packed", "indices"
"""The group that holds both changes where they are sparse, and the name of their positions there."""


@final
@dataclass(frozen=True)
class FisherElastic(Objective):
    """Adds `strength * sum over the other clients of (w - w_j)' diag(Fisher_j) (w - w_j)` to the loss."""

    name: ClassVar[str] = "fisher_elastic"
    strength: float = 1.0
    fisher: Kind = "per_sample_mean"
    stiffness: float | None = 1.0
    one_in: int = 1
    """One Fisher entry in so many counts and is sent: the largest ones."""

    def __post_init__(self) -> None:
        check_non_negative(self, "strength")
        if self.one_in < 1:
            raise UserError(f"{self.name}: one_in must be at least 1 (all entries), not {self.one_in}")
        if isinstance(self.stiffness, float | int) and not self.stiffness > 0:
            raise UserError(f"{self.name}: stiffness must be above 0 (or none), not {self.stiffness}")

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
        fisher = self._sparse(client.squared_gradients(trained.model, kind=self.fisher))
        now = {FISHER: fisher, FISHER_PARAMS: tree.mul(fisher, trained.model["params"])}
        change: dict[str, Params] = {group: tree.sub(now[group], memory[group]) for group in now}
        if self.one_in == 1:
            return change, now
        packed = self._packed(change, concatenated(now[FISHER]), concatenated(memory[FISHER]))
        return {**unpack(packed, fisher), PACKED: packed}, now

    def _sparse(self, fisher: Params) -> Params:
        """The diagonal with 0 for all but its largest entries."""
        if self.one_in == 1:
            return fisher
        vector = concatenated(fisher)
        positions = largest(vector, self._count(len(vector)))
        return divided(spread(taken(vector, positions), positions, len(vector)), fisher)

    def _packed(self, change: State, now: Tensor, before: Tensor) -> Params:
        """Both changes, at the coordinates where they can be other than 0."""
        counts = ((now != 0) | (before != 0)).to(now.dtype)
        positions = largest(counts, min(2 * self._count(len(now)), len(now)))
        values = {group: taken(concatenated(params), positions) for group, params in change.items()}
        return {**values, POSITIONS: positions}

    def _count(self, size: int) -> int:
        return -(-size // self.one_in)

    def rebuilt(self) -> frozenset[str]:
        return frozenset() if self.one_in == 1 else frozenset({FISHER, FISHER_PARAMS})

    def receive(self, message: State, last: State) -> State:
        return message if self.one_in == 1 else {**message, **unpack(message[PACKED], last[FISHER])}

    def absorb(self, hub: State, inbox: Inbox) -> State:
        return {group: tree.add(hub[group], inbox.sum(group)) for group in (FISHER, FISHER_PARAMS)}

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "its Fisher sums need one hub that hears every client, so it is not defined on a graph"
        return super().refuse(conditions) or conditions.problem.refuse_curvature(self.fisher)


def unpack(packed: Params, like: Params) -> State:
    """The changes that a packed group stands for."""
    return {
        group: divided(spread(packed[group], packed[POSITIONS], size_of(like)), like)
        for group in (FISHER, FISHER_PARAMS)
    }
