"""Give every coordinate a step of its own: Adagrad, Adam and Yogi at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization (ICLR 2021),
algorithm 2. With D = merged - w, m = 0 and v = tau^2 before the first round:

    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                                  adagrad
    v <- beta2 v + (1 - beta2) D^2                adam
    v <- v - (1 - beta2) D^2 sign(v - D^2)        yogi
    w <- w + lr m / (sqrt(v) + tau)

There is no bias correction: the start of v takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch

from consilience import tree
from consilience.errors import UserError
from consilience.server_steps.base import ServerStep
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.types import Number, Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Inbox

MOMENTUM, SCALE = "server_momentum", "server_scale"
"""The groups that hold m and v."""


@final
@dataclass(frozen=True)
class Adaptive(ServerStep):
    """`w <- w + lr m / (sqrt(v) + tau)` with moments m, v of `merged - w`; on a graph, a node's own ones.

    Attributes:
        kind: How v follows the squared changes.
        lr: The step size; about the largest change of a coordinate in a round.
        beta1: How much of m is kept.
        beta2: How much of v is kept, by adam and yogi.
        tau: The size of changes far below which they count little; above 0.
    """

    name: ClassVar[str] = "adaptive"
    kind: Literal["adagrad", "adam", "yogi"] = "adam"
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "beta1", "beta2")
        for option, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not is_swept(beta) and beta >= 1:
                raise UserError(f"adaptive: {option} must be below 1, not {beta}")
        if not is_swept(self.tau) and not self.tau > 0:
            raise UserError(f"adaptive: tau must be above 0, not {self.tau}")

    def init(self, params: Params) -> State:
        zeros = tree.zeros_like(params)
        return {MOMENTUM: zeros, SCALE: {name: zero + self.tau**2 for name, zero in zeros.items()}}

    def apply(self, hub: State, merged: Params, inbox: Inbox) -> tuple[Params, State]:
        old = hub["params"]
        change = tree.sub(merged, old)
        momentum = _blend(self.beta1, hub[MOMENTUM], change)
        scale = self._follow(hub[SCALE], tree.mul(change, change))
        params = {
            name: value + self.lr * momentum[name] / (scale[name].sqrt() + self.tau)
            for name, value in old.items()
        }
        return params, {MOMENTUM: momentum, SCALE: scale}

    def _follow(self, scale: Params, square: Params) -> Params:
        """The next v."""
        if self.kind == "adagrad":
            return tree.add(scale, square)
        if self.kind == "adam":
            return _blend(self.beta2, scale, square)
        return {
            name: value - (1 - self.beta2) * square[name] * torch.sign(value - square[name])
            for name, value in scale.items()
        }


def _blend(beta: Number, old: Params, new: Params) -> Params:
    """`beta old + (1 - beta) new`."""
    return new if is_zero(beta) else tree.axpy(beta, old, tree.scale(1 - beta, new))
