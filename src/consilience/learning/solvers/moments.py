"""What Adam and AdamW share: two moving averages of the gradient, corrected for their start at 0."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

import torch

from consilience import tree
from consilience.errors import UserError
from consilience.learning.solvers.base import Solver
from consilience.sweeping import check_non_negative
from consilience.types import Number, Params, State


@dataclass(frozen=True)
class Moments(Solver, ABC):
    """A solver that divides the mean gradient by the root of the mean square of its entries."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "beta1", "beta2", "epsilon", "weight_decay")
        if not (self.beta1 < 1 and self.beta2 < 1):
            raise UserError(
                f"solver {self.name}: beta1 and beta2 must be below 1, not {self.beta1} and {self.beta2}"
            )

    def init(self, params: Params) -> State:
        some = next(iter(params.values()))
        clock = {"steps": torch.zeros((), dtype=some.dtype, device=some.device)}
        return {"first": tree.zeros_like(params), "second": tree.zeros_like(params), "clock": clock}

    def step(self, params: Params, grads: Params, state: State, keep: Number = 1.0) -> tuple[Params, State]:
        """The parameters, of which the share `keep` is left before they move, and the state after a step."""
        steps = state["clock"]["steps"] + 1
        first = tree.axpy(self.beta1, state["first"], tree.scale(1 - self.beta1, grads))
        second = tree.axpy(self.beta2, state["second"], tree.scale(1 - self.beta2, tree.mul(grads, grads)))
        unbias1, unbias2 = 1 - self.beta1**steps, 1 - self.beta2**steps
        moved = {
            name: value * keep
            - self.lr * (first[name] / unbias1) / ((second[name] / unbias2).sqrt() + self.epsilon)
            for name, value in params.items()
        }
        return moved, {"first": first, "second": second, "clock": {"steps": steps}}
