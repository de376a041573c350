"""The way out of a `vmap`: a call inside it arrives outside, with stacked tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from consilience.client import Rows, Step
from consilience.engine.executors.routine import Enter
from consilience.tree import Schema


class LeaveVmap(torch.autograd.Function):
    """The way out of a `vmap`, which hands stacked tensors to the lanes."""

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("the batched executor's fold runs under vmap, on tensors of the client")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to save: a fold is not differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: Tensor) -> tuple[Any, Any]:
        dims = tuple(in_dims[1:])
        folding = Folding(call.step, call.rows, call.epoch, call.carry, call.extras, info.batch_size, dims)
        folded = tuple(call.enter(folding, tensors))
        return folded, (0,) * len(folded)


@dataclass(frozen=True)
class Call:
    """One call of a fold."""

    enter: Enter
    step: Step
    rows: Rows
    epoch: int | None
    carry: Schema
    extras: Schema


@dataclass(frozen=True)
class Folding:
    """What there is to say about a fold, whatever the cohort."""

    step: Step
    rows: Rows
    epoch: int | None
    carry: Schema
    extras: Schema
    jobs: int
    dims: tuple[int | None, ...]
    """Which axis of every tensor counts the jobs; None for one that is the same for all."""
