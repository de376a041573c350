"""The exact Hessian of a client's data, known by what it does: products, blocks and entries, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.client import Client, Step
from consilience.learning import linear_hessian
from consilience.learning.linear_hessian import LinearLayer
from consilience.learning.task import Task
from consilience.problems.base import LOSS, row_sums
from consilience.types import Batch, Params, State


class Curvature(Protocol):
    """A symmetric matrix that is known by what it does: a grid of blocks, all of one width."""

    @property
    def blocks(self) -> int:
        """How many blocks a row of the grid has."""
        ...

    @property
    def width(self) -> int:
        """How many rows a block has."""
        ...

    def times(self, columns: Tensor) -> Tensor:
        """The product with columns [size, k]."""
        ...

    def block(self, first: int, second: int) -> Tensor:
        """[width, width] one block."""
        ...

    def entries(self, positions: Tensor) -> Tensor:
        """The entries at some positions, each row * size + column."""
        ...


@dataclass(frozen=True)
class ProductStep(Step):
    """A step that adds one batch's Hessian times columns. The model and the columns are in `extras`."""

    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        rows = linear_hessian.rows_of(self.task, extras, batch)
        return {"sum": {"found": linear_hessian.products(rows, extras["columns"]["all"])}}


@dataclass(frozen=True)
class BlockStep(Step):
    """A step that adds one block of one batch's Hessian. The model and the block's place are in `extras`."""

    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        rows = linear_hessian.rows_of(self.task, extras, batch)
        place = extras["place"]
        return {"sum": {"found": linear_hessian.block(rows, place["first"], place["second"])}}


@dataclass(frozen=True)
class EntriesStep(Step):
    """A step that adds entries of one batch's Hessian. The model and their places are in `extras`."""

    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        rows = linear_hessian.rows_of(self.task, extras, batch)
        place = extras["place"]
        return {"sum": {"found": linear_hessian.entries(rows, place["first"], place["second"])}}


@dataclass(frozen=True)
class ExactHessian:
    """The Hessian of a client's mean loss at a model, by passes over its data."""

    client: Client
    layer: LinearLayer
    model: State
    """`params` and `buffers`."""

    @property
    def blocks(self) -> int:
        return self.layer.outputs

    @property
    def width(self) -> int:
        return self.layer.features

    def times(self, columns: Tensor) -> Tensor:
        return self._passed(ProductStep(self.client.task), columns.shape, {"columns": {"all": columns}})

    def block(self, first: int, second: int) -> Tensor:
        # The place is data, so that one step serves all blocks.
        chosen = torch.eye(self.blocks, dtype=self.client.samples.dtype, device=self.client.samples.device)
        place = {"first": chosen[first], "second": chosen[second]}
        return self._passed(BlockStep(self.client.task), (self.width, self.width), {"place": place})

    def entries(self, positions: Tensor) -> Tensor:
        size = self.layer.size
        place = {"first": positions // size, "second": positions % size}
        return self._passed(EntriesStep(self.client.task), positions.shape, {"place": place})

    def _passed(self, step: Step, shape: tuple[int, ...], given: State) -> Tensor:
        carry = {"sum": {"found": self.client.samples.new_zeros(shape)}}
        found = self.client.fold(step, carry, {**self.model, **given}, "samples")["sum"]["found"]
        return found / self.client.samples


def dense(truth: Curvature, like: Tensor) -> Tensor:
    """[size, size] the matrix itself, where it is small."""
    return truth.times(torch.eye(truth.blocks * truth.width, dtype=like.dtype, device=like.device))


def pairs(blocks: int) -> Iterator[tuple[int, int]]:
    """The places of blocks on the diagonal of a grid and above it."""
    return ((first, second) for first in range(blocks) for second in range(first, blocks))


@dataclass(frozen=True)
class AlongStep(Step):
    """A step that adds one batch's losses at `model - length * direction`, in evaluation mode.

    The model is in `extras`, and so is the direction.
    """

    task: Task
    lengths: tuple[float, ...]

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        sums = []
        for length in self.lengths:
            params = tree.axpy(-length, extras["direction"], extras["params"])
            model = {"params": params, "buffers": extras["buffers"]}
            prediction = self.task.forward(model, batch, training=False).prediction
            sums.append(row_sums(self.task.loss(prediction, batch.targets), batch.weight)[LOSS])
        return {"sum": {"losses": torch.stack(sums)}}


def losses_along(client: Client, model: State, direction: Params, lengths: tuple[float, ...]) -> Tensor:
    """[lengths] float64, the client's mean losses at `model - length * direction`."""
    carry = {"sum": {"losses": client.samples.new_zeros(len(lengths), dtype=torch.float64)}}
    extras = {"params": model["params"], "buffers": model["buffers"], "direction": direction}
    found = client.fold(AlongStep(client.task, lengths), carry, extras, "samples")["sum"]["losses"]
    return found / client.samples.double()
