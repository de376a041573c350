"""Shift the local objective so that its gradient at the hub's model is the mean gradient of all clients.

Shamir, Srebro, Zhang: Communication-Efficient Distributed Optimization using an Approximate Newton-type
Method (ICML 2014), DANE. Gradients at the hub's model w come first, and g is their mean; then client k
minimises over v

    F_k(v) - <grad F_k(w) - eta g, v> + (mu/2) ||v - w||^2.

The shift stays the same while a client trains: full gradients, whatever the batches are (FedLin's are those
of the same batch, see `fresh_gradients`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from torch import Tensor

from consilience import tree
from consilience.objectives.base import Objective, Pass
from consilience.sweeping import check_non_negative, is_zero
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.client import Client


@final
@dataclass(frozen=True)
class GradientShift(Objective):
    """Adds `<eta g - grad F_k(w), v> + mu/2 ||v - w||^2` to the loss, g the mean gradient at w.

    Attributes:
        eta: How much of the mean gradient is put in place of a client's own.
        mu: How strongly a local model is tied to the hub's.
        own: Whether a client remembers its gradient at w from the exchange before, or computes it (again).
    """

    name: ClassVar[str] = "gradient_shift"
    gradients_first: ClassVar[bool] = True
    eta: float = 1.0
    mu: float = 0.0
    own: Literal["remembered", "computed"] = "remembered"

    def __post_init__(self) -> None:
        check_non_negative(self, "eta", "mu")

    def context(self, client: Client, down: State, memory: State) -> State:
        own = memory["gradient"] if self.own == "remembered" else client.grad(down).params
        return {"anchor": down["params"], "own_gradient": own, "mean_gradient": down["gradient"]}

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        if is_zero(self.mu):
            return None
        return 0.5 * self.mu * tree.sq_norm(tree.sub(at.params, context["anchor"]))

    def correct(self, grads: Params, context: State) -> Params:
        # The difference first: at w it is 0 but for rounding, and a first step goes along g alone.
        return tree.axpy(self.eta, context["mean_gradient"], tree.sub(grads, context["own_gradient"]))
