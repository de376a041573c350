"""RMSprop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience import tree
from consilience.errors import UserError
from consilience.learning.solvers.base import Solver
from consilience.sweeping import check_non_negative, is_zero
from consilience.types import Params, State


@final
@dataclass(frozen=True)
class RMSprop(Solver):
    """Gradients over the root of their mean square (centered: over their deviation), as torch.optim.RMSprop.

    A variance that rounding has made negative counts as 0; torch's own roots would not be numbers there.
    """

    name: ClassVar[str] = "rmsprop"
    lr: float = 0.01
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "alpha", "epsilon", "momentum", "weight_decay")
        if not (self.alpha < 1 and self.momentum < 1):
            raise UserError(
                f"solver rmsprop: alpha and momentum must be below 1, not {self.alpha} and {self.momentum}"
            )

    def init(self, params: Params) -> State:
        groups = ["square", *["mean"] * self.centered, *["velocity"] * (not is_zero(self.momentum))]
        return {group: tree.zeros_like(params) for group in groups}

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        if not is_zero(self.weight_decay):
            grads = tree.axpy(self.weight_decay, params, grads)
        square = tree.axpy(self.alpha, state["square"], tree.scale(1 - self.alpha, tree.mul(grads, grads)))
        after, spread = {"square": square}, square
        if self.centered:
            after["mean"] = tree.axpy(self.alpha, state["mean"], tree.scale(1 - self.alpha, grads))
            variance = tree.sub(square, tree.mul(after["mean"], after["mean"]))
            spread = {name: value.clamp(min=0) for name, value in variance.items()}
        direction = {name: grad / (spread[name].sqrt() + self.epsilon) for name, grad in grads.items()}
        if not is_zero(self.momentum):
            direction = after["velocity"] = tree.axpy(self.momentum, state["velocity"], direction)
        return {name: value - self.lr * direction[name] for name, value in params.items()}, after
