"""Remember where the model has been going: server momentum.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (arXiv 2019). With D = merged - w

    m <- beta m + D,   w <- w + lr m

in the form of torch.optim.SGD: D is not damped by 1 - beta, so the steps add up to D / (1 - beta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from consilience import tree
from consilience.errors import UserError
from consilience.server_steps.base import ServerStep
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Inbox

MOMENTUM = "server_momentum"
"""The group that holds m."""


@final
@dataclass(frozen=True)
class Momentum(ServerStep):
    """`m <- beta m + (merged - w)`, `w <- w + lr m`; on a graph every node has its own m."""

    name: ClassVar[str] = "momentum"
    lr: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "beta")
        if not is_swept(self.beta) and self.beta >= 1:
            raise UserError(f"momentum: beta must be below 1, not {self.beta}")

    def init(self, params: Params) -> State:
        return {MOMENTUM: tree.zeros_like(params)}

    def apply(self, hub: State, merged: Params, inbox: Inbox) -> tuple[Params, State]:
        old = hub["params"]
        change = tree.sub(merged, old)
        momentum = change if is_zero(self.beta) else tree.axpy(self.beta, hub[MOMENTUM], change)
        return tree.axpy(self.lr, momentum, old), {MOMENTUM: momentum}
