"""Start every client at a point displaced along its own gradient minus the mean one.

Dandi, Barba, Jaggi: Implicit Gradient Alignment in Distributed and Federated Learning (AAAI 2022). Gradients
at the hub's model w come first; then client k

    starts at    x_k = w + v_k,    v_k = -beta (g - g_k),    g = sum_k p_k g_k,
    trains from there,
    and sends    w + Delta_k,      Delta_k = x_k after training - x_k before it.

Seen from w, the mean step descends the loss plus a penalty on the variance of the clients' gradients.
Displacements cancel, sum_k p_k v_k = 0, where models are merged with the shares p_k of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from consilience import tree
from consilience.objectives.base import Objective
from consilience.sweeping import check_non_negative, is_zero
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.client import Client, Trained


@final
@dataclass(frozen=True)
class AlignedStart(Objective):
    """Starts from `w + beta (g_k - g)` and sends the model without that displacement."""

    name: ClassVar[str] = "aligned_start"
    gradients_first: ClassVar[bool] = True
    beta: float = 0.1

    def __post_init__(self) -> None:
        check_non_negative(self, "beta")

    def context(self, client: Client, down: State, memory: State) -> State:
        return {} if is_zero(self.beta) else {"displacement": self._displacement(down, memory)}

    def start(self, down: State, context: State) -> State:
        if is_zero(self.beta):
            return down
        return {**down, "params": tree.add(down["params"], context["displacement"])}

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        if is_zero(self.beta):
            return {}, {}
        return {"params": tree.sub(trained.model["params"], self._displacement(down, memory))}, {}

    def _displacement(self, down: State, memory: State) -> Params:
        return tree.scale(-self.beta, tree.sub(down["gradient"], memory["gradient"]))
