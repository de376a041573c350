"""A whole cohort as one batched computation.

A method's `local` runs under `vmap`. When it calls `client.train` and so `fold`, that call leaves the
`vmap` through an `autograd.Function` with a rule of its own and arrives here with the stacked tensors.
Machines then run the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.client import Rows, Step
from consilience.engine.executors.apart import Run, run_here, summed_apart
from consilience.engine.executors.base import UNLIMITED, Errand, Executor, Outcome, joined
from consilience.engine.executors.crew import CAN_FORK, side_by_side
from consilience.engine.executors.leaving import Call, Folding, LeaveVmap
from consilience.engine.executors.machine import Blueprint, Machine
from consilience.engine.executors.program import CannotRecordError
from consilience.engine.executors.routine import Enter, Routines
from consilience.engine.executors.scheduling import Schedule, lanes_for, pack
from consilience.engine.executors.workshop import Workshop
from consilience.exchange import screen
from consilience.exchange.cohort import Cohort
from consilience.exchange.device import SequentialFold
from consilience.learning.batches import Pool
from consilience.transfer import to_device
from consilience.tree import Schema
from consilience.types import State

T = TypeVar("T")


class LaneFold:
    """A fold over the batches of all jobs of a cohort at once; it only works under `vmap`.

    Args:
        workshop: Where the machines are.
        cohort: The jobs.
        lanes: The most lanes that run side by side.
        workers: How many stacked computations run at the same time.
    """

    def __init__(self, workshop: Workshop, cohort: Cohort, lanes: int, workers: int) -> None:
        self.workshop, self.cohort, self.lanes, self.workers = workshop, cohort, lanes, workers
        self.tally: dict[str, Tensor] = {}

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """The carry after all batches of every client."""
        return self.entered(self.run, step, carry, extras, rows, epoch)

    def entered(
        self,
        enter: Enter,
        step: Step,
        carry: State,
        extras: State,
        rows: Rows,
        epoch: int | None = None,
    ) -> State:
        """The carry after all batches, where `enter` carries the fold out."""
        call = Call(enter, step, rows, epoch, Schema.of(carry), Schema.of(extras))
        folded = LeaveVmap.apply(  # type: ignore[no-untyped-call]
            call, *tree.flatten(carry).values(), *tree.flatten(extras).values()
        )
        return call.carry.state(folded)

    def run(
        self, folding: Folding, tensors: Sequence[Tensor], places: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """The carries of all jobs, stacked, after all their steps; in given places, if there are any."""
        while True:
            attempt = _Attempt(self, folding, tensors)
            ordinary = self.workshop.tried(folding.step) > 1
            try:
                result = attempt.run_one_by_one(places) if ordinary else attempt.run(places)
            except CannotRecordError as error:
                self.workshop.give_in(folding.step, error)
                continue
            except torch.OutOfMemoryError:
                widest = attempt.widest
                if widest == 1:  # fewer jobs at a time may fit
                    raise
            else:
                self.workshop.excuse(folding.step)
                self.workshop.leave_room()
                self._log(folding.carry.state(result))
                return result
            del attempt
            self.workshop.shrink(widest)

    def _log(self, result: State) -> None:
        for name, value in result.get("tally", {}).items():
            known = self.tally.get(name)
            self.tally[name] = value.clone() if known is None else known + value


class _Attempt:
    """One attempt to carry out a fold, which may run out of memory."""

    def __init__(self, fold: LaneFold, folding: Folding, tensors: Sequence[Tensor]) -> None:
        self.fold, self.folding = fold, folding
        self.plan = fold.cohort.plan(folding.rows, folding.epoch)
        count, dims = len(folding.carry.paths), folding.dims
        self.carry = [
            _stacked(tensor, dim, folding.jobs)
            for tensor, dim in zip(tensors[:count], dims[:count], strict=True)
        ]
        given = list(zip(folding.extras.paths, tensors[count:], dims[count:], strict=True))
        self.shared = {path: tensor for path, tensor, dim in given if dim is None}
        self.varying = {path: tensor.movedim(dim, 0) for path, tensor, dim in given if dim is not None}
        self.widest = 1
        """How many lanes ran side by side, at most."""

    def run(self, places: Sequence[Tensor] | None) -> list[Tensor]:
        """The carries of all jobs after all their steps."""
        workshop, plan = self.fold.workshop, self.plan
        if self.folding.step.apart and not workshop.pool.targets.is_cuda:
            one = self._blueprint(1)
            return summed_apart(
                workshop,
                one,
                plan,
                self._blank(places),
                self.carry,
                self.varying,
                self.shared,
                self.fold.workers,
            )
        shares = pack(plan.steps, self.fold.workers)
        blueprints = [self._blueprint(self._lanes(own, len(shares))) for own in shares]
        self.widest = max((one.width for one in blueprints), default=1)
        machines = workshop.machines(blueprints)
        tasks = [self._task(*one) for one in zip(machines, shares, strict=True)]
        # Few jobs on many cores had better share the cores' threads than leave them idle.
        if CAN_FORK and len(tasks) > 1 and self.fold.workers <= 2 * len(tasks):
            crew = workshop.crew(machines)
            result = self._blank(places)  # after the crew, whose members would hold a copy
            runs = [partial(task, partial(crew.run, worker), result) for worker, task in enumerate(tasks)]
            side_by_side(runs, give_up=crew.kill)
        else:
            result = self._blank(places)
            side_by_side([partial(task, run_here, result) for task in tasks])
        return result

    def run_one_by_one(self, places: Sequence[Tensor] | None) -> list[Tensor]:
        """The same by ordinary code, for a step that is not the same operations for all numbers."""
        fold, folding, result = self.fold, self.folding, self._blank(places)
        for job in range(folding.jobs):
            extras = {**self.shared, **{path: value[job] for path, value in self.varying.items()}}
            one = SequentialFold(fold.workshop.pool, fold.cohort, job)
            carry = folding.carry.state([value[job] for value in self.carry])
            with torch.no_grad():
                after = one(
                    folding.step,
                    carry,
                    tree.unflatten(extras, folding.extras.groups),
                    folding.rows,
                    folding.epoch,
                )
            for place, value in zip(result, tree.flatten(after).values(), strict=True):
                place[job].copy_(value)
        return result

    def _blank(self, places: Sequence[Tensor] | None) -> list[Tensor]:
        """Where results go; jobs without steps keep what they came with."""
        result = [torch.empty_like(value) for value in self.carry] if places is None else list(places)
        if not self.plan.steps.all():
            for place, value in zip(result, self.carry, strict=True):
                place.copy_(value)
        return result

    def _lanes(self, jobs: Sequence[int], shares: int) -> int:
        """How many lanes one of the workers needs for its share of the jobs."""
        cohort, folding = self.fold.cohort, self.folding
        usual = -(-cohort.population.lanes(folding.rows, cohort.work) // shares)
        return lanes_for(self.plan.steps[list(jobs)], self.fold.lanes, usual)

    def _blueprint(self, width: int) -> Blueprint:
        """What a machine of so many lanes needs, or of as many as fit."""
        folding = self.folding
        one = Blueprint(
            folding.step,
            folding.carry,
            Schema.of(
                tree.unflatten(
                    {path: value[0] for path, value in self.varying.items()}, folding.extras.groups
                )
            ),
            Schema.of(tree.unflatten(self.shared)),
            self.plan.rows.shape[1],
            width,
        )
        return replace(one, width=self.fold.workshop.lanes(one))

    def _task(self, machine: Machine, jobs: Sequence[int]) -> Callable[[Run, list[Tensor]], None]:
        """What one worker has to do, given how to run a machine and where its jobs' results go."""
        plan, carry, varying = self.plan, self.carry, list(self.varying.values())
        machine.share(list(self.shared.values()))
        schedule = Schedule.of(plan, jobs, machine.blueprint.width)
        some = plan.first[jobs[0]]  # for lanes that have finished
        steps = np.where(schedule.steps >= 0, schedule.steps, some)
        sizes, pool = plan.sizes[steps], self.fold.workshop.pool
        machine.prepare(sizes)
        numbers, counts = to_device(np.stack([steps, sizes]), plan.rows.device)
        parts = (plan.rows[numbers], plan.keys[numbers, None], counts[..., None])
        whole = to_device(torch.cat(parts, dim=-1), pool.targets.device)  # one transfer for all
        keys, counts = whole[..., -2], whole[..., -1:]
        rows = parts[0].cpu() if pool.streamed else whole[..., :-2]  # the host reads what is streamed
        weight = (torch.arange(rows.shape[-1], device=counts.device) < counts).to(pool.dtype)

        def work(run: Run, result: list[Tensor]) -> None:
            for begin, end in schedule.stretches():
                machine.take(schedule.ends.get(begin, ()), result)
                machine.put(schedule.starts.get(begin, ()), carry, varying)
                current = slice(begin, end)
                run(machine, rows[current], weight[current], keys[current], sizes[current])
            machine.take(schedule.ends[len(schedule.steps)], result)

        return work


def _stacked(tensor: Tensor, dim: int | None, jobs: int) -> Tensor:
    return tensor.expand(jobs, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


class Batched(Executor):
    """The executor that computes every client of a cohort at once.

    Args:
        pool: The data.
        lanes: How many clients train side by side in one stacked computation, at most.
        chunk: How many jobs are computed at a time.
        workers: How many such computations run at the same time.
        compiled: Whether steps are compiled, on a GPU.
        memory: How many bytes of the device may be used.
    """

    name: ClassVar[str] = "batched"

    def __init__(
        self,
        pool: Pool,
        lanes: int,
        chunk: int,
        workers: int = 1,
        *,
        compiled: bool = False,
        memory: int = UNLIMITED,
    ) -> None:
        super().__init__(pool, memory // COPIED_SHARE, chunk)
        self.lanes, self.workers = lanes, workers
        self._workshop = Workshop(pool, memory, compiled=compiled)
        self._routines = Routines(self.copied)

    def close(self) -> None:
        self._workshop.close()

    def map(
        self,
        function: Callable[..., State],
        dims: Sequence[int | None],
        *states: State,
        key: Hashable = None,
    ) -> State:
        mapped = partial(torch.func.vmap, function, in_dims=tuple(dims))
        try:
            return self._routines.run(key, lambda _, given: mapped()(*given), states, _no_points)
        except torch.OutOfMemoryError:
            pass  # outside, where the error holds no tensors any more
        self._free()
        return mapped()(*states)

    def with_room(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # as above
        self._free()
        self._workshop.stop_capturing()  # the next graphs would take as much again
        return work()

    def clients(
        self,
        cohort: Cohort,
        errand: Errand,
        states: Sequence[State],
        *,
        shared: Sequence[State] = (),
    ) -> Outcome:
        while True:
            chunk = min(self.chunk, len(cohort.jobs))
            starts = range(0, len(cohort.jobs), chunk)
            try:
                if len(starts) == 1:
                    return self._part(cohort, errand, states, shared)
                parts = [
                    self._part(cohort.part(some), errand, [tree.index(s, some) for s in states], shared)
                    for some in (slice(start, start + chunk) for start in starts)
                ]
                return joined(parts)
            except torch.OutOfMemoryError:
                if chunk == 1 and not self._workshop.stop_capturing():
                    raise self._workshop.shortage() from None
            self.chunk = max(1, chunk // 2)
            self._free()

    def _free(self) -> None:
        """Give back all memory that can be had again."""
        self._routines.clear()
        self._workshop.clear()

    def _part(
        self,
        cohort: Cohort,
        errand: Errand,
        states: Sequence[State],
        shared: Sequence[State],
    ) -> Outcome:
        fold = LaneFold(self._workshop, cohort, self.lanes, self.workers)
        dims = (*[0] * len(states), *[None] * len(shared))

        def whole(enter: Enter, given: Sequence[State]) -> State:
            fold.tally.clear()  # of an attempt that failed
            entering = partial(fold.entered, enter)
            mapped = torch.func.vmap(lambda *rows: errand.work(entering, rows), in_dims=dims)
            uploads, memories = mapped(*given)
            arrived = screen.finite([uploads, memories], len(cohort.jobs), cohort.device)
            return {
                **{UPLOAD + group: params for group, params in uploads.items()},
                **{MEMORY + group: params for group, params in memories.items()},
                "arrived": {"all": arrived},
            }

        found = self._routines.run(errand.key, whole, [*states, *shared], fold.run)
        uploads, memories = (
            {group.removeprefix(kind): found[group] for group in found if group.startswith(kind)}
            for kind in (UPLOAD, MEMORY)
        )
        return Outcome(uploads, memories, found["arrived"]["all"], fold.tally)


COPIED_SHARE = 64
"""States that take more than one part in so many of the memory are not copied so that nobody has to wait."""

UPLOAD, MEMORY = "upload.", "memory."
"""What stands before the names of groups where both are in one State."""


def _no_points(facts: Any, tensors: Sequence[Tensor], places: Sequence[Tensor] | None) -> Sequence[Tensor]:
    raise RuntimeError("there is nothing to fold here")
