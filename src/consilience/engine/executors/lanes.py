"""A whole cohort as one batched computation.

A lane is a place in that computation; it trains one job, i.e. one client of one replica, at a time. Jobs
wait in a queue, longest first; when a lane's job ends, the lane takes the next one. The number of steps of
every job is known beforehand, so the schedule is made on the host, with as many lanes as it takes to be
done when the longest job is.

A method's `local` runs under `vmap`. When it calls `client.train` and so `fold`, that call leaves the
`vmap` through an `autograd.Function` with a rule of its own and arrives here with the stacked tensors.
Machines then run the lanes.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.client import Rows, Step
from consilience.engine.executors.base import Executor, Outcome, Work
from consilience.engine.executors.captured import Captured
from consilience.engine.executors.crew import CAN_FORK, Crew
from consilience.engine.executors.machine import Blueprint, Machine, Plain
from consilience.exchange import screen
from consilience.exchange.cohort import Cohort
from consilience.learning.batches import Plan, Pool
from consilience.tree import Schema
from consilience.types import IntArray, State

LOG = logging.getLogger("consilience")


def pack(steps: Sequence[int] | IntArray, lanes: int) -> list[list[int]]:
    """The jobs of each lane, in order: longest first, each to the lane that is free first.

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


def enough_lanes(steps: Sequence[int] | IntArray, most: int) -> int:
    """How many lanes it takes to do all jobs in the time of the longest one, but no more than `most`.

    The number is rounded up to one of a coarse series, so that rounds with other jobs can use the same
    machines. Where lanes take several turns, there are as many as leave the fewest idle in the last.

    >>> enough_lanes([4, 4, 4], 10), enough_lanes([9, 4, 3, 2], 10), enough_lanes([1] * 100, 30)
    (3, 2, 25)
    """
    working = [int(count) for count in steps if count > 0]
    if not working:
        return 1
    needed = -(-sum(working) // max(working))
    unit = 1 << max(0, needed.bit_length() - 4)
    wanted = min(len(working), -(-needed // unit) * unit)
    turns = -(-wanted // most)
    return -(-wanted // turns)


@dataclass(frozen=True)
class Schedule:
    """What every lane does at every tick, at which each takes one step."""

    steps: IntArray
    """[ticks, lanes] the plan's step that a lane runs; -1 where it has finished."""
    starts: dict[int, list[tuple[int, int]]]
    """The (lane, job) pairs that begin before a tick, by tick."""
    ends: dict[int, list[tuple[int, int]]]
    """The (lane, job) pairs that are complete before a tick, by tick."""

    @classmethod
    def of(cls, plan: Plan, jobs: Sequence[int], lanes: int) -> Schedule:
        """The schedule of some of a plan's jobs on some number of lanes."""
        packed = [[jobs[i] for i in lane] for lane in pack(plan.steps[list(jobs)], lanes)]
        ticks = max((int(plan.steps[lane].sum()) for lane in packed), default=0)
        steps = np.full((ticks, lanes), -1, dtype=np.int64)
        starts: dict[int, list[tuple[int, int]]] = {}
        ends: dict[int, list[tuple[int, int]]] = {}
        for lane, own in enumerate(packed):
            tick = 0
            for job in own:
                count = int(plan.steps[job])
                steps[tick : tick + count, lane] = np.arange(plan.first[job], plan.first[job] + count)
                starts.setdefault(tick, []).append((lane, job))
                tick += count
                ends.setdefault(tick, []).append((lane, job))
        return cls(steps, starts, ends)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """The (first tick, end) of the stretches in which no job begins or ends."""
        return itertools.pairwise(sorted(self.starts.keys() | self.ends.keys()))


class Workshop:
    """The machines that were built, kept so that later rounds find them.

    Args:
        pool: Where batches come from.
        compiled: Whether machines on a GPU are compiled.
    """

    def __init__(self, pool: Pool, *, compiled: bool = False) -> None:
        self.pool, self.compiled = pool, compiled
        self._machines: dict[tuple[Blueprint, int], Machine] = {}
        self._crew: Crew | None = None
        self._told: set[str] = set()

    def machine(self, blueprint: Blueprint, worker: int) -> Machine:
        """The machine of a blueprint for one of the workers, built if there is none."""
        if (blueprint, worker) not in self._machines:
            self._machines[blueprint, worker] = self._build(blueprint)
        return self._machines[blueprint, worker]

    def crew(self, size: int) -> Crew:
        """A crew of at least so many processes, which know all machines built so far."""
        machines = list(self._machines.values())
        if self._crew is None or not self._crew.can_run(machines, size):
            if self._crew:
                self._crew.close()
            self._crew = Crew(machines, size)
        return self._crew

    def close(self) -> None:
        """Let the processes go."""
        if self._crew:
            self._crew.close()
            self._crew = None

    def _build(self, blueprint: Blueprint) -> Machine:
        if self.pool.targets.is_cuda:
            return Captured(self.pool, blueprint, compiled=self.compiled)
        machine = Plain(self.pool, blueprint)
        if machine.obstacle and machine.obstacle not in self._told:
            self._told.add(machine.obstacle)
            LOG.info("some steps run the slower way, as they were recorded: %s", machine.obstacle)
        return machine


class LaneFold:
    """A fold over the batches of all jobs of a cohort at once; it only works under `vmap`."""

    def __init__(self, workshop: Workshop, cohort: Cohort, lanes: int, workers: int) -> None:
        self.workshop, self.cohort, self.lanes, self.workers = workshop, cohort, lanes, workers
        self.tally: dict[str, Tensor] = {}

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """The carry after all batches of every client."""
        plan = self.cohort.plan(rows, epoch)
        call = _Call(self, step, plan, Schema.of(carry), Schema.of(extras))
        folded = _LeaveVmap.apply(  # type: ignore[no-untyped-call]
            call, *tree.flatten(carry).values(), *tree.flatten(extras).values()
        )
        return call.carry.state(folded)


class _LeaveVmap(torch.autograd.Function):
    """The way out of a `vmap`, which hands stacked tensors to the lanes."""

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
    carry: Schema
    extras: Schema

    def run(self, jobs: int, tensors: Sequence[Tensor], dims: Sequence[int | None]) -> tuple[Tensor, ...]:
        """The carries of all jobs, stacked, after all their steps.

        A tensor whose dim is None is the same for all jobs.
        """
        count = len(self.carry.paths)
        carry = [
            _stacked(tensor, dim, jobs) for tensor, dim in zip(tensors[:count], dims[:count], strict=True)
        ]
        given = list(zip(self.extras.paths, tensors[count:], dims[count:], strict=True))
        shared = {path: tensor for path, tensor, dim in given if dim is None}
        varying = {path: tensor.movedim(dim, 0) for path, tensor, dim in given if dim is not None}
        shares = pack(self.plan.steps, self.fold.workers)
        tasks = [self._task(worker, own, carry, varying, shared) for worker, own in enumerate(shares)]
        # Few jobs on many cores had better share the cores' threads than leave them idle.
        if CAN_FORK and len(tasks) > 1 and self.fold.workers <= 2 * len(tasks):
            crew = self.fold.workshop.crew(len(tasks))
            # Made after the crew, whose members would hold a copy. Jobs without steps keep what they had.
            result = [value.clone() for value in carry]
            runs = [partial(task, partial(crew.run, worker), result) for worker, task in enumerate(tasks)]
            side_by_side(runs, give_up=crew.kill)
        else:
            result = [value.clone() for value in carry]
            side_by_side([partial(task, _run_here, result) for task in tasks])
        self._log(self.carry.state(result))
        return tuple(result)

    def _task(
        self,
        worker: int,
        jobs: Sequence[int],
        carry: list[Tensor],
        varying: dict[str, Tensor],
        shared: dict[str, Tensor],
    ) -> Callable[[Run, list[Tensor]], None]:
        """What one worker has to do, given how to run a machine and where its jobs' results go."""
        plan = self.plan
        width = enough_lanes(plan.steps[list(jobs)], self.fold.lanes)
        blueprint = Blueprint(
            self.step,
            self.carry,
            Schema.of(
                tree.unflatten({path: value[0] for path, value in varying.items()}, self.extras.groups)
            ),
            Schema.of(tree.unflatten(shared)),
            plan.rows.shape[1],
            width,
        )
        machine = self.fold.workshop.machine(blueprint, worker)
        machine.share(list(shared.values()))
        schedule = Schedule.of(plan, jobs, width)
        machine.prepare(plan.sizes[schedule.steps[schedule.steps >= 0]])
        pool, device = self.fold.workshop.pool, plan.rows.device
        some = plan.first[jobs[0]]  # for lanes that have finished
        steps = np.where(schedule.steps >= 0, schedule.steps, some)
        numbers = torch.from_numpy(steps).to(device)
        sizes = torch.from_numpy(plan.sizes).to(device)
        positions = torch.arange(plan.rows.shape[1], device=device)

        def work(run: Run, result: list[Tensor]) -> None:
            for begin, end in schedule.stretches():
                machine.take(schedule.ends.get(begin, ()), result)
                machine.put(schedule.starts.get(begin, ()), carry, list(varying.values()))
                current = numbers[begin:end]
                weight = (positions < sizes[current][..., None]).to(pool.dtype)
                run(machine, plan.rows[current], weight, plan.keys[current], plan.sizes[steps[begin:end]])
            machine.take(schedule.ends[len(schedule.steps)], result)

        return work

    def _log(self, result: State) -> None:
        for name, value in result.get("tally", {}).items():
            known = self.fold.tally.get(name)
            self.fold.tally[name] = value if known is None else known + value


Run = Callable[[Machine, Tensor, Tensor, Tensor, IntArray], None]
"""A function that runs a machine on some rows, weights, keys and sizes."""


def _run_here(machine: Machine, rows: Tensor, weight: Tensor, keys: Tensor, sizes: IntArray) -> None:
    machine.run(rows, weight, keys, sizes)


def _stacked(tensor: Tensor, dim: int | None, jobs: int) -> Tensor:
    return tensor.expand(jobs, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def side_by_side(tasks: Sequence[Callable[[], None]], give_up: Callable[[], None] = lambda: None) -> None:
    """Run tasks at the same time, each on its share of the processor's cores.

    `give_up` is called when one fails, or on an interrupt; it should make the others end.
    """
    if len(tasks) < 2:
        for task in tasks:
            task()
        return
    threads = torch.get_num_threads()
    each = max(1, threads // len(tasks))

    def alone(task: Callable[[], None]) -> None:
        torch.set_num_threads(each)  # of this thread
        task()

    torch.set_num_threads(each)
    try:
        with ThreadPoolExecutor(len(tasks)) as workers:
            running = [workers.submit(alone, task) for task in tasks]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                give_up()
                raise
    finally:
        torch.set_num_threads(threads)


class Batched(Executor):
    """The executor that computes every client of a cohort at once.

    Args:
        pool: The data.
        lanes: How many clients train side by side in one stacked computation.
        chunk: How many jobs are computed at a time.
        workers: How many such computations run at the same time.
        compiled: Whether steps are compiled, on a GPU.
    """

    name: ClassVar[str] = "batched"

    def __init__(
        self, pool: Pool, lanes: int, chunk: int, workers: int = 1, *, compiled: bool = False
    ) -> None:
        super().__init__(pool)
        self.lanes, self.chunk, self.workers = lanes, chunk, workers
        self._workshop = Workshop(pool, compiled=compiled)

    def close(self) -> None:
        self._workshop.close()

    def map(self, function: Callable[..., State], dims: Sequence[int | None], *states: State) -> State:
        return torch.func.vmap(function, in_dims=tuple(dims))(*states)

    def clients(
        self, cohort: Cohort, work: Work, states: Sequence[State], example: Work | None = None
    ) -> Outcome:
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
        fold = LaneFold(self._workshop, some, self.lanes, self.workers)

        def one(*rows: State) -> tuple[State, State]:
            return work(fold, rows)

        uploads, memories = torch.func.vmap(one)(*(tree.index(state, chosen) for state in states))
        arrived = screen.finite([uploads, memories], len(some.jobs), some.device)
        return Outcome(uploads, memories, arrived, fold.tally)
