"""The exact Hessian of a client's data, known by what it does: products, blocks and entries, pass by pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.algorithm import Algorithm
from consilience.client import Client, Step
from consilience.errors import UserError
from consilience.learning import linear_hessian
from consilience.learning.linear_hessian import LinearLayer
from consilience.learning.low_rank import from_dense
from consilience.learning.task import Task
from consilience.problems.base import LOSS, row_sums
from consilience.types import Batch, Number, Params, State

USUAL_L2 = 1e-3
"""The weight of the l2 term where neither the method nor the run says any."""


class LearnsHessians(Algorithm):
    """What methods share whose hubs learn the Hessians of linear models, and know the l2 term."""

    l2: float | None
    """The weight of the l2 term; None: that of the run's losses, or the usual one where they have none."""
    mu: float | None
    """The least eigenvalue that a hub believes in; None: the weight of the l2 term."""

    @property
    def _term(self) -> Number:
        return USUAL_L2 if self.l2 is None else self.l2

    @property
    def _floor(self) -> Number:
        return self._term if self.mu is None else self.mu

    def linear_only(self) -> bool:
        return True

    def for_model(self, model: State, l2: float = 0.0) -> Algorithm:
        if self.l2 is not None and l2 not in (0.0, self.l2):
            raise UserError(f"{self.name}: its l2 is {self.l2} and the run's is {l2}: give the run's alone")
        return sweeping.replace(self, {"l2": l2 or self._term})

    def _layer(self, state: State) -> LinearLayer:
        return LinearLayer.of(state["params"], self.name)


def data_gradient(client: Client, model: State) -> Params:
    """The gradient of a client's mean loss without an l2 term: that is known to the hub."""
    gradient = client.grad(model).params
    return tree.axpy(-client.task.l2, model["params"], gradient) if client.task.l2 else gradient


class Curvature(ABC):
    """A symmetric matrix that is known by what it does: a grid of blocks, all of one width."""

    @property
    @abstractmethod
    def blocks(self) -> int:
        """How many blocks a row of the grid has."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many rows a block has."""

    @abstractmethod
    def times(self, columns: Tensor) -> Tensor:
        """The product with columns [size, k]."""

    @abstractmethod
    def block(self, first: int, second: int) -> Tensor:
        """[width, width] one block."""


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
class ExactHessian(Curvature):
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
        return self.passed(ProductStep(self.client.task), columns.shape, {"columns": {"all": columns}})

    def block(self, first: int, second: int) -> Tensor:
        # The place is data, so that one step serves all blocks.
        chosen = torch.eye(self.blocks, dtype=self.client.samples.dtype, device=self.client.samples.device)
        place = {"first": chosen[first], "second": chosen[second]}
        return self.passed(BlockStep(self.client.task), (self.width, self.width), {"place": place})

    def entries(self, positions: Tensor) -> Tensor:
        """The entries at some positions, each row * size + column."""
        size = self.layer.size
        place = {"first": positions // size, "second": positions % size}
        return self.passed(EntriesStep(self.client.task), positions.shape, {"place": place})

    def coefficients(self, vector: Tensor) -> Tensor:
        """The coefficients of a vector in the standard basis, which are the vector itself."""
        return vector

    def passed(self, step: Step, shape: tuple[int, ...], given: State) -> Tensor:
        """What a step adds up over the client's data, over the number of samples."""
        carry = {"sum": {"found": self.client.samples.new_zeros(shape)}}
        found = self.client.fold(step, carry, {**self.model, **given}, "samples")["sum"]["found"]
        return found / self.client.samples


@dataclass(frozen=True)
class InBasis(Curvature):
    """A Hessian's coefficients in a basis of the features, V'BV for each of its blocks B."""

    truth: ExactHessian
    basis: Tensor
    """[features, directions] V, orthonormal columns or 0."""

    @property
    def blocks(self) -> int:
        return self.truth.blocks

    @property
    def width(self) -> int:
        return self.basis.shape[-1]

    def times(self, columns: Tensor) -> Tensor:
        return lifted(self.basis.mT, self.truth.times(lifted(self.basis, columns)))

    def block(self, first: int, second: int) -> Tensor:
        return self.basis.mT @ self.truth.block(first, second) @ self.basis

    def coefficients(self, vector: Tensor) -> Tensor:
        """[outputs * directions] those of a vector, e.g. a gradient."""
        return lifted(self.basis.mT, vector[:, None])[:, 0]


def lifted(basis: Tensor, columns: Tensor) -> Tensor:
    """[outputs * features, k] what columns [outputs * directions, k] of coefficients stand for."""
    directions = basis.shape[-1]
    return (basis @ columns.reshape(-1, directions, columns.shape[-1])).reshape(-1, columns.shape[-1])


@dataclass(frozen=True)
class GramStep(Step):
    """A step that adds one batch's inner products of features. The model is in `extras`."""

    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        inputs = linear_hessian.rows_of(self.task, extras, batch).inputs
        return {"sum": {"found": inputs.mT @ inputs}}


def data_basis(truth: ExactHessian, directions: int) -> Tensor:
    """[features, directions] an orthonormal basis of the span of a client's data.

    Where they span more, its leading directions; where less, the last columns are 0.
    """
    gram = truth.passed(GramStep(truth.client.task), (truth.width, truth.width), {})
    return from_dense(gram, directions).vectors


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
