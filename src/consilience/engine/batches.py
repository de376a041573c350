"""Which rows every client visits, step by step, and how rows become batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.engine.randomness import Purpose, generator
from consilience.types import Batch

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Booleans = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Pool:
    """A data set on the device, in its published type; rows are normalised when they are read.

    Training rows come first, test rows after them.
    """

    inputs: Tensor
    targets: Tensor
    shift: Tensor
    scale: Tensor
    dtype: torch.dtype

    def batch(self, rows: Tensor, weight: Tensor, key: Tensor) -> Batch:
        """The batch of some row numbers, of any leading shape."""
        inputs = (self.inputs[rows].to(self.dtype) - self.shift) / self.scale
        return Batch(inputs, self.targets[rows], weight, key)


@dataclass(frozen=True)
class Plan:
    """The batches of many jobs, one after another. A job is one client's work in one replica."""

    rows: Tensor
    """[steps, batch] row numbers; a short batch is padded with its first row."""
    sizes: IntArray
    """[steps] how many rows of a batch count."""
    keys: Tensor
    """[steps] int64 source of the randomness of a step."""
    first: IntArray
    """[jobs] the first step of each job."""
    steps: IntArray
    """[jobs] the number of steps of each job."""

    def of_job(self, job: int) -> range:
        """The steps of one job."""
        return range(self.first[job], self.first[job] + self.steps[job])


@dataclass(frozen=True)
class Visit:
    """Whose data is visited: the seed, the round and the client decide every order and key."""

    seed: int
    round: int
    client: int
    rows: IntArray


@dataclass(frozen=True)
class Order:
    """The steps of one job."""

    rows: IntArray
    """[steps, batch] row numbers, -1 for padding."""
    keys: IntArray
    """[steps] sources of the steps' randomness."""

    def first(self, steps: int | None) -> Order:
        """The first steps."""
        return Order(self.rows[:steps], self.keys[:steps])


def training_order(visit: Visit, epochs: Sequence[int], steps: int | None, batch_size: int) -> Order:
    """The steps of local training; every epoch is shuffled anew.

    Args:
        visit: Whose data.
        epochs: The epochs to list.
        steps: Where given, this many steps, whatever number of epochs they take.
        batch_size: Rows of a full batch. The last batch of an epoch may be smaller.
    """
    if steps is not None and len(visit.rows):
        per_epoch = -(-len(visit.rows) // batch_size)
        epochs = range(-(-steps // per_epoch))
    orders = [_shuffled(visit, Purpose.TRAINING, epoch, batch_size) for epoch in epochs or [0]]
    return Order(
        np.concatenate([order.rows for order in orders]), np.concatenate([order.keys for order in orders])
    ).first(steps if epochs else 0)


def data_order(visit: Visit, batch_size: int) -> Order:
    """One pass over a client's data, shuffled, so that batches are random ones."""
    return _shuffled(visit, Purpose.DATA_PASS, 0, batch_size)


def _shuffled(visit: Visit, purpose: Purpose, epoch: int, batch_size: int) -> Order:
    random = generator(visit.seed, purpose, visit.round, visit.client, epoch)
    count = -(-len(visit.rows) // batch_size)
    rows = np.full(count * batch_size, -1, dtype=np.int64)
    rows[: len(visit.rows)] = random.permutation(visit.rows)
    return Order(rows.reshape(count, batch_size), random.integers(2**62, size=count))


def plan(orders: Sequence[Order], device: torch.device) -> Plan:
    """The plan of all jobs from the order of each."""
    steps = np.array([len(order.rows) for order in orders], dtype=np.int64)
    rows = np.concatenate([order.rows for order in orders])
    keys = np.concatenate([order.keys for order in orders])
    padded = np.where(rows >= 0, rows, rows[:, :1])
    return Plan(
        torch.from_numpy(padded).to(device),
        (rows >= 0).sum(1),
        torch.from_numpy(keys).to(device),
        np.cumsum(steps) - steps,
        steps,
    )
