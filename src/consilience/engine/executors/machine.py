"""Lanes that run one step side by side, again and again, in memory that stays where it is.

A machine is built once for a step and the shapes of its tensors, and then serves every round. Its lanes
hold the carries (what a step passes from batch to batch) of the jobs that run; what a lane computes after its
job has been taken out is waste.
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from consilience import tree
from consilience.client import Step
from consilience.engine.executors.program import CannotRecordError, record
from consilience.engine.executors.tape import Arena, Run, placed
from consilience.learning.ahead import ahead
from consilience.learning.batches import Pool
from consilience.torch_internals import copy_all
from consilience.transfer import to_device
from consilience.tree import Schema
from consilience.types import Batch, IntArray, State

Pairs = Sequence[tuple[int, int]]
"""Pairs of a lane and a job."""

CHANNELS_LAST_DIMENSIONS = 4  # of the weights of a convolution
NO_VIEW = ("view size is not compatible with input tensor's size and stride", "must be 1 to view")
"""What torch says, for want of an exception of its own, where a layout does not allow a view."""
TICKS = 16
"""How many ticks' batches are read from the pool at once, on a CPU."""
SIZES = 4
"""How many sizes of batches a single lane has programs for: a quarter full, half full and so on."""


@dataclass(frozen=True)
class Blueprint:
    """What decides whether a machine can be used again."""

    step: Step
    carry: Schema
    varying: Schema
    """Extras (what a step gets beside carry and batch) that differ between lanes."""
    shared: Schema
    """Extras that are the same for all lanes."""
    rows: int
    """How many rows a batch has."""
    width: int
    """How many lanes there are."""

    def extras(self, varying: Sequence[Tensor], shared: Sequence[Tensor]) -> State:
        """All extras as the step knows them."""
        left, right = self.varying.state(varying), self.shared.state(shared)
        groups = {**left, **right}
        return {group: {**left.get(group, {}), **right.get(group, {})} for group in groups}


class Machine(ABC):
    """Some lanes that run together. A single one needs no lane axis, and its convolutions keep channels last.

    Args:
        pool: Where batches come from.
        blueprint: What to run.
        whole: Whether programs compute the next carry. By default they stop at what the step measures where
            the carry can be moved in place.
    """

    def __init__(self, pool: Pool, blueprint: Blueprint, *, whole: bool = False) -> None:
        self.pool, self.blueprint = pool, blueprint
        device = pool.targets.device
        self.carry = _memory(blueprint.carry, blueprint.width, device)
        self.varying = _memory(blueprint.varying, blueprint.width, device)
        self.shared = [value[0] for value in _memory(blueprint.shared, 1, device)]
        self.alone = blueprint.width == 1
        self._whole = whole
        images = any(value.ndim == CHANNELS_LAST_DIMENSIONS + 1 for value in self.carry)
        if not (self.alone and images and self._settles_with_channels_last()):
            self._settle(self.carry)

    def _settles_with_channels_last(self) -> bool:
        """Whether the model works in that layout, for which torch's kernels are the faster ones.

        It does not where it asks for views of images that lie otherwise in memory.
        """
        plain = self.carry
        self._settle([_channels_last(value) for value in plain])
        try:
            self.program(self.example(min(2, self.blueprint.rows)), full=False)
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_VIEW):
                raise
            self.carry = plain
            return False
        return True

    def _settle(self, carry: list[Tensor]) -> None:
        """Take memory for the lanes' carries."""
        blueprint, self.carry = self.blueprint, carry
        self.arguments = [*(self.of_lanes(value) for value in (*self.carry, *self.varying)), *self.shared]
        """The arguments of a program, but for the batch."""
        carried, varied = len(self.carry), len(self.varying)
        self._carry = blueprint.carry.state(self.arguments[:carried])
        self._extras = blueprint.extras(self.arguments[carried : carried + varied], self.shared)
        self._in_place = not self._whole and (self.alone or blueprint.step.stackable(self._extras))

    def of_lanes(self, value: Tensor) -> Tensor:
        """A tensor as a program takes it: a single lane has no lane axis."""
        return value[0] if self.alone else value

    def example(self, rows: int) -> list[Tensor]:
        """A batch with some number of rows, in the form in which a program takes it."""
        numbers = torch.arange(self.blueprint.width * rows, device=self.pool.targets.device)
        known = len(self.pool.targets)
        few = min(known, 8) if self.pool.streamed else known  # to read many would take time
        chosen = (numbers % few).reshape(self.blueprint.width, rows)
        raw = self.pool.raw(chosen, torch.ones_like(chosen, dtype=self.pool.dtype), chosen[:, 0])
        return [self.of_lanes(value) for value in raw[:4]]

    def program(self, batch: Sequence[Tensor], *, full: bool) -> LaneProgram:
        """A program for batches like this one; `full` says that all rows count."""
        examples = [*self.arguments, *batch]
        return LaneProgram.of(self.pool, self.blueprint, examples, whole=not self._in_place, full=full)

    def keep(self, found: State) -> None:
        """Take what a program has found into the carry."""
        if self._in_place:
            self.blueprint.step.advance_in_place(self._carry, found, self._extras)
        else:
            _overwrite(self._carry, found)

    def share(self, shared: Sequence[Tensor]) -> None:
        """Take the extras that all lanes share."""
        for place, value in zip(self.shared, shared, strict=True):
            place.copy_(value)

    def put(self, pairs: Pairs, carry: Sequence[Tensor], varying: Sequence[Tensor]) -> None:
        """Let lanes begin jobs, whose rows are in stacked tensors."""
        _copy_rows((*carry, *varying), (*self.carry, *self.varying), [(job, lane) for lane, job in pairs])

    def take(self, pairs: Pairs, results: Sequence[Tensor]) -> None:
        """Copy the carries of lanes to the rows of their jobs."""
        _copy_rows(self.carry, results, pairs)

    def prepare(self, sizes: IntArray) -> None:  # noqa: B027
        """Get ready for batches of which so many rows count, before this process forks any other."""

    @property
    def programs(self) -> int:
        """How many programs are ready."""
        return 0

    @property
    def held_bytes(self) -> int:
        """How much memory the machine holds, whether it runs or not."""
        return sum(value.nbytes for value in (*self.carry, *self.varying, *self.shared))

    @abstractmethod
    def run(self, rows: Tensor, weight: Tensor, keys: Tensor, sizes: IntArray) -> None:
        """Run some ticks, at each of which every lane takes one step.

        Args:
            rows: [ticks, lanes, batch] row numbers.
            weight: The same shape, 1 for rows that count.
            keys: [ticks, lanes] sources of randomness.
            sizes: [ticks, lanes] how many rows count, known without asking the device.
        """


@dataclass(frozen=True)
class LaneProgram:
    """A step's work for all lanes of a machine, recorded.

    The arguments are the tensors of the carry, of the varying and of the shared extras, and the batch as it
    lies in the pool: inputs, targets, weight and key. A single lane has no lane axis.
    """

    module: GraphModule
    result: Schema

    @classmethod
    def of(
        cls, pool: Pool, blueprint: Blueprint, examples: Sequence[Tensor], *, whole: bool, full: bool
    ) -> LaneProgram:
        """The program of the whole step, or of what it measures; `full` says that all rows count."""
        carried, varied = len(blueprint.carry.paths), len(blueprint.varying.paths)
        work = blueprint.step if whole else blueprint.step.measure
        forms: list[Schema] = []

        def lane(
            carry: list[Tensor], varying: list[Tensor], shared: list[Tensor], raw: list[Tensor]
        ) -> list[Tensor]:
            inputs, targets, weight, key = raw
            batch = Batch(pool.normalised(inputs), targets, weight, key, full)
            result = work(blueprint.carry.state(carry), batch, blueprint.extras(varying, shared))
            forms.append(Schema.of(result))
            return list(tree.flatten(result).values())

        def lanes(*tensors: Tensor) -> list[Tensor]:
            carry, rest = list(tensors[:carried]), list(tensors[carried:-4])
            given = (carry, rest[:varied], rest[varied:], list(tensors[-4:]))
            if blueprint.width == 1:
                return lane(*given)
            mapped: list[Tensor] = torch.func.vmap(lane, in_dims=(0, 0, None, 0))(*given)
            return mapped

        try:
            return cls(record(lanes, examples), forms[0])
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            raise CannotRecordError(str(error)) from error


class Plain(Machine):
    """A machine for CPUs: operations are called from Python, and what a step moves is moved in place."""

    def __init__(self, pool: Pool, blueprint: Blueprint) -> None:
        super().__init__(pool, blueprint)
        self._arena = Arena()
        self._programs: dict[tuple[int, bool], _Placed] = {}
        for value in self.arguments:  # until there are values: among zeros mistakes are not noticed
            if value.is_floating_point():
                value.uniform_(0.01, 0.1, generator=torch.Generator().manual_seed(0))
        self.obstacle = self._known(blueprint.rows, full=self.alone).obstacle
        """Why full batches run the slower way, as recorded; None where they do not."""

    def _known(self, rows: int, *, full: bool) -> _Placed:
        if (rows, full) not in self._programs:
            batch = self.example(rows)
            program = self.program(batch, full=full)
            run = placed(program.module, [*self.arguments, *batch], self._arena)
            self._programs[rows, full] = _Placed(batch, run, program.result)
        return self._programs[rows, full]

    def prepare(self, sizes: IntArray) -> None:
        # Forked processes cannot record: where there is a GPU, autograd has threads that they have not.
        for rows, full in {self._kind(int(size)) for size in np.unique(sizes)}:
            self._known(rows, full=full)

    @property
    def programs(self) -> int:
        return len(self._programs)

    @property
    def held_bytes(self) -> int:
        return super().held_bytes + self._arena.size

    def _kind(self, size: int) -> tuple[int, bool]:
        """How many rows of a batch are worth computing, and whether the batch is full.

        A single lane need not compute padding.
        """
        most = self.blueprint.rows
        if not self.alone:
            return most, False
        unit = -(-most // SIZES)
        return min(most, -(-size // unit) * unit), size == most

    def run(self, rows: Tensor, weight: Tensor, keys: Tensor, sizes: IntArray) -> None:
        if self.alone:
            rows, weight, keys = (value[:, 0] for value in (rows, weight, keys))
        with torch.no_grad():
            ticks = self.pool.at_a_time(TICKS, rows[:1].numel())
            parts = [slice(begin, begin + ticks) for begin in range(0, len(rows), ticks)]

            def read(some: slice) -> Batch:
                return self.pool.raw(rows[some], weight[some], keys[some])

            batches = ahead(read, parts) if self.pool.streamed else map(read, parts)
            for some, raw in zip(parts, batches, strict=True):
                for (size, *_), *batch in zip(
                    sizes[some].tolist(), *(v.unbind() for v in raw[:4]), strict=True
                ):
                    self._tick(*self._kind(size), Batch(*batch))

    def _tick(self, rows: int, full: bool, batch: Batch) -> None:
        if rows < self.blueprint.rows:
            batch = Batch(batch.inputs[:rows], batch.targets[:rows], batch.weight[:rows], batch.key)
        self.keep(self._known(rows, full=full).replay(batch[:4]))


class _Placed:
    """A program, and the memory from which it reads its batch."""

    def __init__(self, batch: Sequence[Tensor], run: Run, result: Schema) -> None:
        self._batch, self._run, self._form = batch, run, result
        self._found = None if run.lasting is None else result.state(run.lasting)
        self.obstacle = run.obstacle

    def replay(self, batch: Sequence[Tensor]) -> State:
        """What the program finds for another batch."""
        for place, value in zip(self._batch, batch, strict=True):
            place.copy_(value)
        results = self._run.call()
        return self._form.state(results) if self._found is None else self._found


def _copy_rows(values: Sequence[Tensor], places: Sequence[Tensor], pairs: Pairs) -> None:
    """Copy rows of stacked tensors to rows of others, by as few kernels as can be."""
    if len(pairs) == len(places[0]):  # all rows are written
        sources = [source for source, _ in sorted(pairs, key=lambda pair: pair[1])]
        if sources == list(range(len(values[0]))):
            copy_all_kinds(places, values)
            return
        order = to_device(sources, places[0].device)
        for value, place in zip(values, places, strict=True):
            torch.index_select(value, 0, order, out=place)
        return
    given = [value.select(0, source) for value in values for source, _ in pairs]
    written = [place.select(0, target) for place in places for _, target in pairs]
    copy_all_kinds(written, given)


def copy_all_kinds(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy tensors to others, by one kernel for each type."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, value in zip(places, values, strict=True):
        written, given = kinds.setdefault(value.dtype, ([], []))
        written.append(place)
        given.append(value)
    for written, given in kinds.values():
        copy_all(written, given)


def _memory(schema: Schema, width: int, device: torch.device) -> list[Tensor]:
    """Memory for the tensors of some lanes; on a CPU, memory that forked processes share."""
    return [_empty((width, *shape), dtype, device) for shape, dtype in schema.kinds().values()]


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    count = math.prod(shape)
    if device.type != "cpu" or not count:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).reshape(shape)


def _channels_last(single: Tensor) -> Tensor:
    """The same memory, of one lane, seen as the weights of a convolution with channels last."""
    if single.ndim != CHANNELS_LAST_DIMENSIONS + 1:
        return single
    lane, filters, channels, height, width = single.shape
    return single.reshape(lane, filters, height, width, channels).permute(0, 1, 4, 2, 3)


def _overwrite(state: State, other: State) -> None:
    for group, params in state.items():
        for name, value in params.items():
            value.copy_(other[group][name])
