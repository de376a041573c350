"""Which rows every client visits, step by step, and how rows become batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience.learning.randomness import Purpose, stream_bits, stream_keys
from consilience.transfer import to_device
from consilience.types import Batch, IntArray

FEW = 2**15
"""The most rows in all epochs of all visits whose plan stays on the host."""
SHUFFLE_BITS, KEY_BITS = 40, 62
"""How many bits the hashes that shuffle have (other bits say in which list), and the keys of steps."""


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

    def raw(self, rows: Tensor, weight: Tensor, key: Tensor) -> Batch:
        """The batch of some row numbers, of any leading shape, with inputs as they lie here."""
        flat = rows.flatten()
        return Batch(
            self.inputs.index_select(0, flat).reshape(*rows.shape, *self.inputs.shape[1:]),
            self.targets.index_select(0, flat).reshape(*rows.shape, *self.targets.shape[1:]),
            weight,
            key,
        )

    def normalised(self, inputs: Tensor) -> Tensor:
        """Inputs as models take them; tokens stay the whole numbers that they are."""
        if inputs.dtype == torch.int64:
            return inputs
        return (inputs.to(self.dtype) - self.shift) / self.scale

    def batch(self, rows: Tensor, weight: Tensor, key: Tensor) -> Batch:
        """The batch of some row numbers with normalised inputs."""
        raw = self.raw(rows, weight, key)
        return raw._replace(inputs=self.normalised(raw.inputs))


@dataclass(frozen=True)
class Plan:
    """The batches of many jobs, one after another.

    A job is one client's work in one replica, i.e. in one of the federations that are simulated at once.
    """

    rows: Tensor
    """[steps, batch] row numbers; a short batch is padded with its first row.

    Small plans stay on the host.
    """
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

    def beginning(self, steps: Sequence[int]) -> Plan:
        """The plan of the first steps of each job, at most so many."""
        counts = np.minimum(self.steps, np.asarray(steps, dtype=np.int64))
        kept = np.concatenate([np.arange(a, a + n) for a, n in zip(self.first, counts, strict=True)])
        chosen = to_device(kept, self.rows.device)
        return Plan(self.rows[chosen], self.sizes[kept], self.keys[chosen], _starts(counts), counts)


@dataclass(frozen=True)
class Visit:
    """A client whose data are visited: the seed, the round and its number decide every order and key."""

    seed: int
    round: int
    client: int
    rows: IntArray


def training_plan(
    visits: Sequence[Visit],
    epochs: Sequence[Sequence[int]],
    steps: Sequence[int] | None,
    batch_size: int,
    device: torch.device,
) -> Plan:
    """The batches of local training; every epoch is shuffled anew.

    Args:
        visits: The clients whose data are visited.
        epochs: The epochs to list, of each visit.
        steps: Where given, this many steps of each visit, whatever number of epochs they take.
        batch_size: How many rows a full batch has. The last batch of an epoch may be smaller.
        device: Where the plan is needed.
    """
    if steps is None:
        return _shuffled(Purpose.TRAINING, visits, epochs, batch_size, device)
    lists = [
        range(-(-count // max(1, -(-len(visit.rows) // batch_size))))
        for visit, count in zip(visits, steps, strict=True)
    ]
    whole = _shuffled(Purpose.TRAINING, visits, lists, batch_size, device)
    return whole.beginning(steps)


def data_plan(visits: Sequence[Visit], batch_size: int, device: torch.device) -> Plan:
    """The batches of one pass over every client's data, shuffled, so that they are random ones."""
    return _shuffled(Purpose.DATA_PASS, visits, [[0]] * len(visits), batch_size, device)


def common_plan(rows: IntArray, jobs: int, batch_size: int, device: torch.device) -> Plan:
    """The batches of some rows, in the same order for all jobs."""
    count = -(-len(rows) // batch_size)
    padded = np.full(count * batch_size, -1, dtype=np.int64)
    padded[: len(rows)] = rows
    numbers = to_device(padded.reshape(count, batch_size), device)
    return Plan(
        torch.where(numbers >= 0, numbers, numbers[:, :1]),
        (padded.reshape(count, batch_size) >= 0).sum(1),
        torch.zeros(count, dtype=torch.int64, device=device),
        np.zeros(jobs, dtype=np.int64),
        np.full(jobs, count, dtype=np.int64),
    )


def _shuffled(
    purpose: Purpose,
    visits: Sequence[Visit],
    epochs: Sequence[Sequence[int]],
    batch_size: int,
    device: torch.device,
) -> Plan:
    """The batches of all epochs of all visits, made at once.

    Sorting by a hash shuffles, and does so alike on every device. A few rows are sorted by the host before a
    GPU has been told what to do.
    """
    if (
        device.type == "cuda"
        and sum(len(v.rows) * len(own) for v, own in zip(visits, epochs, strict=True)) <= FEW
    ):
        device = torch.device("cpu")
    lists = [(visit, epoch) for visit, own in zip(visits, epochs, strict=True) for epoch in own]
    lengths = np.array([len(visit.rows) for visit, _ in lists], dtype=np.int64)
    batches = -(-lengths // batch_size)
    # A visit's rows are the same in all of its epochs: they are large, and moved once.
    known = np.concatenate([np.zeros(0, dtype=np.int64), *(visit.rows for visit in visits)])
    shares = np.array([len(visit.rows) for visit in visits], dtype=np.int64)
    firsts = np.repeat(_starts(shares), np.array([len(own) for own in epochs], dtype=np.int64))
    named = stream_keys([(v.seed, purpose, v.round, v.client, epoch) for v, epoch in lists]).numpy()
    table = np.stack([lengths, _starts(lengths), batches, _starts(batches), firsts, named])
    length, start, count, step_start, first, keys = to_device(table, device)  # one transfer for all

    # Every entry (a row of a list), with the list it is in and its place there.
    owner, place = _entries(length, start, int(lengths.sum()))
    shuffled = ((owner << SHUFFLE_BITS) | stream_bits(keys[owner], place, SHUFFLE_BITS)).argsort(stable=True)
    visited = to_device(known, device)[(first[owner] + place)[shuffled]]
    # Every step, with the list it is in and its place there; it takes the next entries of that list.
    step_owner, step_place = _entries(count, step_start, int(batches.sum()))
    column = torch.arange(batch_size, device=device)
    done = step_place[:, None] * batch_size
    inside = done + column < length[step_owner][:, None]
    rows = visited[start[step_owner][:, None] + done + torch.where(inside, column, 0)]

    sizes = np.full(len(rows), batch_size, dtype=np.int64)
    sizes[np.cumsum(batches)[lengths > 0] - 1] -= (batches * batch_size - lengths)[lengths > 0]
    steps = np.array(
        [len(own) * -(-len(visit.rows) // batch_size) for visit, own in zip(visits, epochs, strict=True)],
        dtype=np.int64,
    )
    bits = stream_bits(keys[step_owner], -1 - step_place, KEY_BITS)
    return Plan(rows, sizes, bits, _starts(steps), steps)


def _starts(counts: IntArray) -> IntArray:
    return np.cumsum(counts) - counts


def _entries(lengths: Tensor, starts: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The list of every entry of lists laid end to end, and the entry's place in that list."""
    which = torch.arange(len(lengths), device=lengths.device)
    if lengths.is_cuda:
        owner = torch.repeat_interleave(which, lengths, output_size=total)
    else:  # torch wakes all of its threads for this
        owner = torch.from_numpy(np.repeat(which.numpy(), lengths.numpy()))
    return owner, torch.arange(total, device=lengths.device) - starts[owner]
