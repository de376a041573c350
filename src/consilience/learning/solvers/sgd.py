"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import UserError
from consilience.learning.solvers.base import Solver
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.torch_internals import fused_sgd
from consilience.types import Number, Params, State


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
            raise UserError(f"solver {self.name}: nesterov needs a momentum above 0")
        if not is_swept(self.momentum) and self.momentum >= 1:
            raise UserError(f"solver {self.name}: momentum must be below 1, not {self.momentum}")

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
        """Write the step in one pass over memory, by the kernel behind torch.optim.SGD(fused=True)."""
        if any(isinstance(number, Tensor) for number in (self.lr, self.momentum, self.weight_decay)):
            super().update_in_place(params, grads, state)
            return
        fused_sgd(
            [_as_it_lies(value) for value in params.values()],
            [_as_it_lies(_laid_out_as(value, grads[name])) for name, value in params.items()],
            [_as_it_lies(state["velocity"][name]) for name in params] if "velocity" in state else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )


def _laid_out_as(model: Tensor, value: Tensor) -> Tensor:
    """The value with the memory layout of another tensor: fused kernels run over memory, not over indices."""
    return value if value.stride() == model.stride() else torch.empty_like(model).copy_(value)


def _as_it_lies(value: Tensor) -> Tensor:
    """The numbers in their order in memory: of others the kernel makes a useless copy."""
    return value if value.is_contiguous() else value.as_strided((value.numel(),), (1,))


def _descend(lr: Number, direction: Params, params: Params) -> Params:
    return {name: value - lr * direction[name] for name, value in params.items()}
