"""Local optimisers as pure functions. Their state is made anew every round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import UserError
from consilience.numbers import is_zero
from consilience.types import Number, Params, State


class Solver(ABC):
    """How a client moves its parameters along a gradient."""

    name: ClassVar[str]
    stackable: ClassVar[bool] = False
    """Whether `update_in_place` treats every coordinate alike, so that many clients' can be stacked."""
    lr: Number

    @abstractmethod
    def init(self, params: Params) -> State:
        """The optimiser's state before the first step of a round."""

    @abstractmethod
    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        """One step: new parameters, new state."""

    def update_in_place(self, params: Params, grads: Params, state: State) -> None:
        """The same step written over the old numbers; `grads` may be used up."""
        moved, after = self.update(params, grads, state)
        for name, value in moved.items():
            params[name].copy_(value)
        for group, values in after.items():
            for name, value in values.items():
                state[group][name].copy_(value)


@final
@dataclass(frozen=True)
class SGD(Solver):
    """Stochastic gradient descent with momentum and weight decay, as torch.optim.SGD defines them."""

    name: ClassVar[str] = "sgd"
    stackable: ClassVar[bool] = True
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "momentum", "weight_decay")
        if self.nesterov and self.momentum == 0:
            raise UserError("solver sgd: nesterov needs a momentum above 0")
        if not isinstance(self.momentum, Tensor) and self.momentum >= 1:
            raise UserError(f"solver sgd: momentum must be below 1, not {self.momentum}")

    def init(self, params: Params) -> State:
        return {} if is_zero(self.momentum) else {"velocity": tree.zeros_like(params)}

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        if not is_zero(self.weight_decay):
            grads = tree.axpy(self.weight_decay, params, grads)
        if is_zero(self.momentum):
            return _descend(self.lr, grads, params), {}
        velocity = tree.axpy(self.momentum, state["velocity"], grads)
        direction = tree.axpy(self.momentum, velocity, grads) if self.nesterov else velocity
        return _descend(self.lr, direction, params), {"velocity": velocity}

    def update_in_place(self, params: Params, grads: Params, state: State) -> None:
        """In one pass over memory, by the kernel behind torch.optim.SGD(fused=True)."""
        if any(isinstance(number, Tensor) for number in (self.lr, self.momentum, self.weight_decay)):
            super().update_in_place(params, grads, state)
            return
        torch._fused_sgd_(
            list(params.values()),
            [_laid_out_as(value, grads[name]) for name, value in params.items()],
            [state["velocity"][name] for name in params] if "velocity" in state else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )


@final
@dataclass(frozen=True)
class Adam(Solver):
    """Adam with bias correction (decoupled weight decay, as AdamW)."""

    name: ClassVar[str] = "adam"
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "beta1", "beta2", "epsilon", "weight_decay")
        if not (self.beta1 < 1 and self.beta2 < 1):
            raise UserError(
                f"solver adam: beta1 and beta2 must be below 1, not {self.beta1} and {self.beta2}"
            )

    def init(self, params: Params) -> State:
        some = next(iter(params.values()))
        clock = {"steps": torch.zeros((), dtype=some.dtype, device=some.device)}
        return {"first": tree.zeros_like(params), "second": tree.zeros_like(params), "clock": clock}

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        steps = state["clock"]["steps"] + 1
        first = tree.axpy(self.beta1, state["first"], tree.scale(1 - self.beta1, grads))
        second = tree.axpy(self.beta2, state["second"], tree.scale(1 - self.beta2, tree.mul(grads, grads)))
        unbias1, unbias2 = 1 - self.beta1**steps, 1 - self.beta2**steps
        moved = {
            name: value * (1 - self.lr * self.weight_decay)
            - self.lr * (first[name] / unbias1) / ((second[name] / unbias2).sqrt() + self.epsilon)
            for name, value in params.items()
        }
        return moved, {"first": first, "second": second, "clock": {"steps": steps}}


SOLVERS: dict[str, type[Solver]] = {solver.name: solver for solver in (SGD, Adam)}


def check_non_negative(part: object, *fields: str) -> None:
    """Refuse what is no number, negative or not finite in the named fields."""
    for field in fields:
        value = getattr(part, field)
        if isinstance(value, Tensor):
            continue
        bound = None
        if not isinstance(value, int | float):
            bound = "a number"
        elif not 0 <= value < math.inf:
            bound = "finite" if value == math.inf else "at least 0"
        if bound:
            name = getattr(part, "name", type(part).__name__)
            raise UserError(f"{name}: {field} must be {bound}, not {value!r}")


def _laid_out_as(model: Tensor, value: Tensor) -> Tensor:
    """The value with the memory layout of another tensor: fused kernels run over memory, not over indices."""
    return value if value.stride() == model.stride() else torch.empty_like(model).copy_(value)


def _descend(lr: Number, direction: Params, params: Params) -> Params:
    return {name: value - lr * direction[name] for name, value in params.items()}
