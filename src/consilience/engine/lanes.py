"""A whole cohort as one batched computation.

State for L lanes lives in stacked tensors; each lane trains one job at a time. Jobs wait in a queue,
longest first; when a lane's job ends, the lane takes the next one. The number of steps of every job is
known beforehand, so the schedule is made on the host and no lane ever idles while there is work: the
lanes that still run are always the first ones, and the stack shrinks with them.

A method's `local` runs under `vmap`. When it calls `client.train` and so `fold`, that call leaves the
`vmap` through an `autograd.Function` with a rule of its own and arrives here with the stacked tensors.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.client import Rows, Step
from consilience.engine import screen
from consilience.engine.batches import IntArray, Plan, Pool
from consilience.engine.cohort import Cohort
from consilience.engine.executor import Executor, Outcome, Work
from consilience.types import Batch, State

_LaneStep = Callable[[list[Tensor], Batch, list[Tensor]], list[Tensor]]
"""From the carries, batches and extras of all lanes to their next carries."""


def pack(steps: Sequence[int] | IntArray, lanes: int) -> list[list[int]]:
    """Jobs of each lane, in order: longest first, each to the lane that is free first.

    Lanes come out with the most loaded first; jobs without steps are left out.

    >>> pack([3, 1, 2, 2], 2)
    [[0, 1], [2, 3]]
    """
    queue = sorted((job for job in range(len(steps)) if steps[job] > 0), key=lambda job: -steps[job])
    free = [(0, lane) for lane in range(min(lanes, len(queue)))]
    packed: list[list[int]] = [[] for _ in free]
    for job in queue:
        load, lane = heapq.heappop(free)
        packed[lane].append(job)
        heapq.heappush(free, (load + int(steps[job]), lane))
    order = sorted(free, key=lambda entry: (-entry[0], entry[1]))
    return [packed[lane] for _, lane in order]


@dataclass(frozen=True)
class Schedule:
    """What every lane does at every tick."""

    steps: IntArray
    """[ticks, lanes] the plan's step that a lane runs; -1 where it has finished."""
    active: IntArray
    """[ticks] how many lanes run; they are the first ones."""
    starts: dict[int, list[tuple[int, int]]]
    """By tick, the (lane, job) pairs that begin before it."""
    ends: dict[int, list[tuple[int, int]]]
    """By tick, the (lane, job) pairs that are complete before it."""

    @classmethod
    def of(cls, plan: Plan, lanes: int) -> Schedule:
        """The schedule of a plan's jobs on some number of lanes."""
        packed = pack(plan.steps, lanes)
        ticks = max((int(plan.steps[jobs].sum()) for jobs in packed), default=0)
        steps = np.full((ticks, len(packed)), -1, dtype=np.int64)
        starts: dict[int, list[tuple[int, int]]] = {}
        ends: dict[int, list[tuple[int, int]]] = {}
        for lane, jobs in enumerate(packed):
            tick = 0
            for job in jobs:
                count = int(plan.steps[job])
                steps[tick : tick + count, lane] = np.arange(plan.first[job], plan.first[job] + count)
                starts.setdefault(tick, []).append((lane, job))
                tick += count
                ends.setdefault(tick, []).append((lane, job))
        return cls(steps, (steps >= 0).sum(1), starts, ends)


class LaneFold:
    """Runs a step over the batches of all jobs of a cohort at once; only works under `vmap`."""

    def __init__(self, pool: Pool, cohort: Cohort, lanes: int) -> None:
        self.pool, self.cohort, self.lanes = pool, cohort, lanes
        self.tally: dict[str, Tensor] = {}

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """The carry after all batches of every client."""
        call = _Call(self, step, self.cohort.plan(rows, epoch), _Names.of(carry), _Names.of(extras))
        folded = _LeaveVmap.apply(  # type: ignore[no-untyped-call]
            call, *tree.flatten(carry).values(), *tree.flatten(extras).values()
        )
        return call.carry.state(folded)


@dataclass(frozen=True)
class _Names:
    """How a flat list of tensors becomes a State again."""

    paths: tuple[str, ...]
    groups: tuple[str, ...]

    @classmethod
    def of(cls, state: State) -> _Names:
        return cls(tuple(tree.flatten(state)), tuple(state))

    def state(self, tensors: Sequence[Tensor]) -> State:
        return tree.unflatten(dict(zip(self.paths, tensors, strict=True)), self.groups)


class _LeaveVmap(torch.autograd.Function):
    """Hands stacked tensors to the lanes."""

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("the batched executor's fold runs under vmap, on tensors of the client")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to save: a fold is not differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: _Call, *tensors: Tensor) -> tuple[Any, Any]:
        folded = call.run(info.batch_size, tensors, in_dims[1:])
        return folded, (0,) * len(folded)


@dataclass(frozen=True)
class _Call:
    """One fold of a cohort."""

    fold: LaneFold
    step: Step
    plan: Plan
    carry: _Names
    extras: _Names

    def run(self, jobs: int, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> tuple[Tensor, ...]:
        """All jobs' carries, stacked, after all their steps.

        A tensor whose dim is None is the same for all jobs.
        """
        count = len(self.carry.paths)
        carry = [
            _stacked(tensor, dim, jobs) for tensor, dim in zip(tensors[:count], dims[:count], strict=True)
        ]
        given = list(zip(self.extras.paths, tensors[count:], dims[count:], strict=True))
        shared = {path: tensor for path, tensor, dim in given if dim is None}
        varying = {path: tensor.movedim(dim, 0) for path, tensor, dim in given if dim is not None}
        result = self._run(carry, list(varying.values()), self._vmapped(list(varying), shared))
        self._log(self.carry.state(result))
        return tuple(result)

    def _vmapped(self, varying: list[str], shared: dict[str, Tensor]) -> _LaneStep:
        def one(carry: list[Tensor], batch: Batch, extras: list[Tensor]) -> list[Tensor]:
            given = shared | dict(zip(varying, extras, strict=True))
            after = self.step(self.carry.state(carry), batch, tree.unflatten(given, self.extras.groups))
            flat = tree.flatten(after)
            return [flat[path] for path in self.carry.paths]

        return torch.func.vmap(one)

    def _run(self, carry: list[Tensor], extras: list[Tensor], step: _LaneStep) -> list[Tensor]:
        pool, plan = self.fold.pool, self.plan
        device = plan.rows.device
        schedule = Schedule.of(plan, self.fold.lanes)
        numbers = torch.from_numpy(schedule.steps).to(device)
        sizes = torch.from_numpy(plan.sizes).to(device)
        positions = torch.arange(plan.rows.shape[1], device=device)
        result = [value.clone() for value in carry]  # jobs without steps keep what they came with
        held = [*carry, *extras]
        lanes = [value[:0] for value in held]
        for tick, active in enumerate(schedule.active.tolist()):
            _finish(result, lanes, schedule.ends.get(tick, []), device)
            lanes = _begin([value[:active] for value in lanes], held, schedule.starts.get(tick, []), device)
            current = numbers[tick, :active]
            weight = (positions < sizes[current][:, None]).to(pool.dtype)
            batch = pool.batch(plan.rows[current], weight, plan.keys[current])
            unchanging = lanes[len(carry) :]
            lanes = [*step(lanes[: len(carry)], batch, unchanging), *unchanging]
        _finish(result, lanes, schedule.ends.get(len(schedule.active), []), device)
        return result

    def _log(self, result: State) -> None:
        for name, value in result.get("tally", {}).items():
            known = self.fold.tally.get(name)
            self.fold.tally[name] = value if known is None else known + value


def _stacked(tensor: Tensor, dim: int | None, jobs: int) -> Tensor:
    return tensor.expand(jobs, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _begin(
    lanes: list[Tensor], source: list[Tensor], pairs: list[tuple[int, int]], device: torch.device
) -> list[Tensor]:
    """Lanes with the rows of some jobs put in (at the start there are no lanes yet)."""
    if not pairs:
        return lanes
    lane_numbers, jobs = (torch.tensor(column, device=device) for column in zip(*pairs, strict=True))
    if len(lanes[0]) == 0:
        return [value[jobs] for value in source]
    return [lane.index_copy(0, lane_numbers, value[jobs]) for lane, value in zip(lanes, source, strict=True)]


def _finish(
    result: list[Tensor], lanes: list[Tensor], pairs: list[tuple[int, int]], device: torch.device
) -> None:
    """Copy the carry of finished jobs (the first tensors of the lanes) to the jobs' rows of the result."""
    if pairs:
        lane_numbers, jobs = (torch.tensor(column, device=device) for column in zip(*pairs, strict=True))
        for target, lane in zip(result, lanes, strict=False):
            target.index_copy_(0, jobs, lane[lane_numbers])


class Batched(Executor):
    """Every client of the cohort at once.

    Args:
        pool: The data.
        lanes: How many clients train side by side.
        chunk: How many jobs are computed at a time.
    """

    name: ClassVar[str] = "batched"

    def __init__(self, pool: Pool, lanes: int, chunk: int) -> None:
        super().__init__(pool)
        self.lanes, self.chunk = lanes, chunk

    def map(self, function: Callable[..., State], dims: Sequence[int | None], *states: State) -> State:
        return torch.func.vmap(function, in_dims=tuple(dims))(*states)

    def clients(self, cohort: Cohort, work: Work, states: Sequence[State]) -> Outcome:
        starts = range(0, len(cohort.jobs), self.chunk)
        parts = [self._part(cohort, slice(start, start + self.chunk), work, states) for start in starts]
        if len(parts) == 1:
            return parts[0]
        return Outcome(
            tree.concatenate([part.uploads for part in parts]),
            tree.concatenate([part.memories for part in parts]),
            torch.cat([part.arrived for part in parts]),
            {name: torch.cat([part.tally[name] for part in parts]) for name in parts[0].tally},
        )

    def _part(self, cohort: Cohort, chosen: slice, work: Work, states: Sequence[State]) -> Outcome:
        some = cohort.part(chosen)
        fold = LaneFold(self.pool, some, self.lanes)

        def one(*rows: State) -> tuple[State, State]:
            return work(fold, rows)

        uploads, memories = torch.func.vmap(one)(*(tree.index(state, chosen) for state in states))
        arrived = screen.finite([uploads, memories], len(some.jobs), some.device)
        return Outcome(uploads, memories, arrived, fold.tally)
