"""Which rows every client visits, step by step, and how rows become batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from consilience.data.stored import Inputs, Stored
from consilience.learning.randomness import Numbers, Purpose, stream_bits, stream_keys
from consilience.transfer import to_device
from consilience.types import Batch, IntArray

FEW = 2**15
"""The most rows in all epochs of all visits whose plan stays on the host."""
READ_BYTES = 2**26
"""The most bytes of inputs that are read together, where they are not resident."""
SHUFFLE_BITS, KEY_BITS = 40, 62
"""How many bits the hashes that shuffle have (other bits say in which list), and the keys of steps."""


@dataclass(frozen=True)
class Pool:
    """A data set, in its published type; rows are normalised when they are read.

    Training rows come first, test rows after them. Targets are on the device, and inputs are there, too, or
    come there as batches need them.
    """

    inputs: Inputs
    targets: Tensor
    shift: Tensor
    scale: Tensor
    dtype: torch.dtype

    def raw(self, rows: Tensor, weight: Tensor, key: Tensor) -> Batch:
        """The batch of some row numbers, of any leading shape, with inputs as they lie here."""
        flat = rows.flatten()
        if isinstance(self.inputs, Stored):
            # Every row once: short batches are padded with one and the same.
            numbers, places = np.unique(flat.cpu().numpy(), return_inverse=True)
            read = self.inputs.rows(numbers).index_select(0, torch.from_numpy(places))
            read, flat = (to_device(one, self.targets.device) for one in (read, flat))
        else:
            read = self.inputs.index_select(0, flat)
        return Batch(
            read.reshape(*rows.shape, *self.inputs.shape[1:]),
            self.targets.index_select(0, flat).reshape(*rows.shape, *self.targets.shape[1:]),
            weight,
            key,
        )

    @property
    def streamed(self) -> bool:
        """Whether inputs are read as batches need them."""
        return isinstance(self.inputs, Stored)

    @property
    def nbytes(self) -> int:
        """How much of the device's memory the data take."""
        return self.targets.nbytes + (self.inputs.nbytes if isinstance(self.inputs, Tensor) else 0)

    @property
    def given_dtype(self) -> torch.dtype:
        """The type of inputs as models take them."""
        return self.inputs.dtype if self.inputs.dtype == torch.int64 else self.dtype

    def at_a_time(self, most: int, rows: int) -> int:
        """How many ticks' batches, of so many rows each, are read together: so many, or as few as fit."""
        if not self.streamed:
            return most
        tick = max(1, rows * self.inputs.shape[1:].numel() * self.inputs.dtype.itemsize)
        return max(1, min(most, READ_BYTES // tick))

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
        job, place = entries(counts, int(counts.sum()))
        kept = self.first[job] + place
        chosen = to_device(kept, self.rows.device)
        return Plan(self.rows[chosen], self.sizes[kept], self.keys[chosen], _starts(counts), counts)


class Visit(NamedTuple):
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
    lists = [(visit, epoch) for visit, own in zip(visits, epochs, strict=True) for epoch in own]
    shares = np.array([len(visit.rows) for visit in visits], dtype=np.int64)
    repeats = np.array([len(own) for own in epochs], dtype=np.int64)
    lengths, firsts = np.repeat(shares, repeats), np.repeat(_starts(shares), repeats)
    batches, total = -(-lengths // batch_size), int(lengths.sum())
    few = device.type == "cpu" or total <= FEW
    # A visit's rows are the same in all of its epochs: they are large, and moved once.
    known = np.concatenate([np.zeros(0, dtype=np.int64), *(visit.rows for visit in visits)])
    named = stream_keys(
        [visit.seed for visit, _ in lists],
        purpose,
        [visit.round for visit, _ in lists],
        [visit.client for visit, _ in lists],
        [epoch for _, epoch in lists],
    )
    table = np.stack([lengths, _starts(lengths), batches, firsts, named])
    # On a device one transfer for all; on the host in numpy, which begins sooner than torch.
    length, start, count, first, keys = table if few else to_device(table, device)
    held, column = (one if few else to_device(one, device) for one in (known, np.arange(batch_size)))

    # Every entry (a row of a list), with the list it is in and its place there.
    owner, place = entries(length, total)
    shuffled = _order((owner << SHUFFLE_BITS) | stream_bits(keys[owner], place, SHUFFLE_BITS))
    visited = held[(first[owner] + place)[shuffled]]
    # Every step, with the list it is in and its place there; it takes the next entries of that list.
    step_owner, step_place = entries(count, int(batches.sum()))
    done = step_place[:, None] * batch_size
    inside = done + column < length[step_owner][:, None]
    rows = visited[start[step_owner][:, None] + done + inside * column]
    bits = stream_bits(keys[step_owner], -1 - step_place, KEY_BITS)

    sizes = np.full(len(rows), batch_size, dtype=np.int64)
    sizes[np.cumsum(batches)[lengths > 0] - 1] -= (batches * batch_size - lengths)[lengths > 0]
    steps = repeats * -(-shares // batch_size)
    return Plan(torch.as_tensor(rows), sizes, torch.as_tensor(bits), _starts(steps), steps)


def _starts(counts: IntArray) -> IntArray:
    return np.cumsum(counts) - counts


def _order(numbers: Numbers) -> Numbers:
    """The places of numbers in ascending order; equal ones stay in theirs."""
    if isinstance(numbers, Tensor):
        return numbers.argsort(stable=True)
    if len(numbers) <= FEW:
        return numbers.argsort(kind="stable")
    return torch.from_numpy(numbers).argsort(stable=True).numpy()  # sooner done with many than numpy


def entries(lengths: Numbers, total: int) -> tuple[Numbers, Numbers]:
    """The list of every entry of lists laid end to end, and the entry's place in that list.

    Args:
        lengths: How many entries each list has.
        total: How many that are, known without asking the device.
    """
    if isinstance(lengths, Tensor):
        lists, numbers = (torch.arange(count, device=lengths.device) for count in (len(lengths), total))
        owner = torch.repeat_interleave(lists, lengths, output_size=total)
    else:
        owner, numbers = np.repeat(np.arange(len(lengths)), lengths), np.arange(total)
    return owner, numbers - (lengths.cumsum(0) - lengths)[owner]
