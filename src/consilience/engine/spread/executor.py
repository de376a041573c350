"""The executor that lets workers do clients' work; hubs and single models stay where it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from consilience import tree
from consilience.engine.executors.base import Errand, Executor, Outcome
from consilience.engine.spread.kept import Kept, dealt
from consilience.engine.spread.worker import Arrays, Done, Part, gathered, of_rows, packed, unpacked
from consilience.exchange.address import Address
from consilience.exchange.cohort import Cohort
from consilience.transfer import to_device
from consilience.types import IntArray, State

T = TypeVar("T")

SPEED = {"cpu": 2e10, "cuda": 3e13}
"""What a core, or a large GPU, does of a small model's operations in a second, roughly."""
SECONDS_A_PIECE, SECONDS_A_BYTE = 0.05, 2e-9
"""How long a worker has to be at work on a piece of the test set for it to pay, by what a journey takes."""


class Workers(Protocol):
    """Where workers are, and how they are reached."""

    def there(self) -> Sequence[Hashable]:
        """Those that are at work now; at least one."""

    def carry_out(self, parts: Mapping[Hashable, Part], alike: dict[int, Arrays]) -> dict[Hashable, Done]:
        """What the jobs of each worker's part did; nothing of who is lost, or has lost what it kept."""

    def close(self) -> None:
        """Let the workers go."""


class Spread(Executor):
    """The executor that spreads the jobs of a cohort over workers.

    Args:
        here: Computes what is not worth a journey: hubs, and the work of a single job.
        workers: Who does the rest.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, here: Executor, workers: Workers) -> None:
        super().__init__(here.pool, here.copied, here.chunk)
        self.here, self.workers = here, workers
        self._kept = Kept()

    def close(self) -> None:
        self.here.close()
        self.workers.close()

    def with_room(self, work: Callable[[], T]) -> T:
        return self.here.with_room(work)

    def map(
        self,
        function: Callable[..., State],
        dims: Sequence[int | None],
        *states: State,
        key: Hashable = None,
    ) -> State:
        return self.here.map(function, dims, *states, key=key)

    def clients(
        self,
        cohort: Cohort,
        errand: Errand,
        states: Sequence[State],
        *,
        shared: Sequence[State] = (),
    ) -> Outcome:
        if errand.order is None:
            return self.here.clients(cohort, errand, states, shared=shared)
        pieces = self._pieces(cohort, errand, states)
        if len(cohort.jobs) == 1 and pieces == 1:
            return self.here.clients(cohort, errand, states, shared=shared)
        _, first, places = np.unique(
            [job.replica for job in cohort.jobs], return_index=True, return_inverse=True
        )
        chosen = to_device(first, cohort.device)
        alike = {number: packed(tree.index(states[number], chosen)) for number in sorted(errand.alike)}
        whole = Part(
            errand.order,
            cohort.round,
            tuple((job.replica, job.client) for job in cohort.jobs),
            tuple(job.host for job in cohort.jobs if job.host is not None) or None,
            tuple(places.tolist()),
            {number: packed(one) for number, one in enumerate(states) if number not in errand.alike},
            [packed(one) for one in shared],
        )
        if pieces > 1:
            return self._in_pieces(cohort, whole, alike, states[0], pieces)
        loads, left = _loads(cohort, errand), list(range(len(cohort.jobs)))
        found: list[tuple[Sequence[int], Done]] = []
        marks = np.zeros(len(cohort.jobs), dtype=np.int64)
        while left:  # who is lost leaves jobs to the others
            shares = self._shares(left, loads, errand.marks)
            parts = {worker: self._part(whole, errand, worker, rows) for worker, rows in shares.items()}
            done = self.workers.carry_out(parts, alike)
            for worker, own in done.items():
                found.append((shares[worker], own))
                marks[shares[worker]] = parts[worker].marks or 0
            lost = shares.keys() - done.keys()
            left = sorted(row for worker in lost for row in shares[worker])
            for worker in lost:
                self._kept.lose(worker)
        outcome = gathered([own for _, own in found], [rows for rows, _ in found], cohort.device)
        return replace(outcome, marks=tuple(marks.tolist())) if errand.marks else outcome

    def _pieces(self, cohort: Cohort, errand: Errand, states: Sequence[State]) -> int:
        """In how many pieces the test set is scored by as many workers: 1 where that does not pay."""
        if errand.operations is None or errand.order != "test":
            return 1
        most = min(len(self.workers.there()) // len(cohort.jobs), cohort.test_batches)
        if most < 2:  # to count operations takes a second the first time: torch imports its compiler
            return 1
        speed = SPEED.get(cohort.device.type, SPEED["cpu"])
        least = speed * (SECONDS_A_PIECE + SECONDS_A_BYTE * tree.nbytes(tree.index(states[-1], 0)))
        worth = int(errand.operations() * len(cohort.test) // least)
        return max(1, min(most, worth))

    def _in_pieces(
        self, cohort: Cohort, whole: Part, alike: dict[int, Arrays], start: State, pieces: int
    ) -> Outcome:
        """The sums of every model over the test set, of which workers add up some batches each.

        Every batch has sums of its own, which are added here in their order: so they round as in one process.
        """
        ranges = [tuple(own.tolist()) for own in np.array_split(np.arange(cohort.test_batches), pieces)]
        left = [(job, own) for job in range(len(cohort.jobs)) for own in ranges]
        found: dict[tuple[int, tuple[int, ...]], Done] = {}
        while left:
            given = dict(zip(self.workers.there(), left, strict=False))
            parts = {worker: replace(whole.of([job]), batches=own) for worker, (job, own) in given.items()}
            done = self.workers.carry_out(parts, alike)
            found |= {given[worker]: own for worker, own in done.items()}
            left = [piece for piece in left if piece not in found]
        sums: list[State] = []
        for job in range(len(cohort.jobs)):
            total = tree.index(start, job)
            for own in ranges:
                batches = unpacked(found[job, own].uploads, cohort.device)
                for number in range(len(own)):
                    one = tree.index(batches, number)
                    total = {group: tree.add(params, one[group]) for group, params in total.items()}
            sums.append(total)
        arrived = [
            all(d.arrived.all() for (one, _), d in found.items() if one == job) for job in range(len(sums))
        ]
        return Outcome(tree.stack(sums), {}, to_device(np.array(arrived), cohort.device), {})

    def _shares(
        self, rows: Sequence[int], loads: IntArray, marks: Sequence[int]
    ) -> dict[Hashable, list[int]]:
        """Which of some jobs each worker does, of those that have any."""
        there = self.workers.there()
        place = {worker: number for number, worker in enumerate(there)}
        holders = [place.get(self._kept.holder(marks[row])) if marks else None for row in rows]
        dealing = dealt(loads[list(rows)], holders, len(there))
        return {worker: [rows[i] for i in own] for worker, own in zip(there, dealing, strict=True) if own}

    def _part(self, whole: Part, errand: Errand, worker: Hashable, rows: Sequence[int]) -> Part:
        """The part of some jobs that a worker does; memories that it has are left out."""
        number = errand.remembered
        if number is None or not errand.marks:
            return whole.of(rows)
        memories = whole.own[number]
        others = {other: one for other, one in whole.own.items() if other != number}
        part = replace(whole, own=others).of(rows)
        dropped = self._kept.dropped(worker)  # before there is more to be dropped
        before = [errand.marks[row] for row in rows]
        known = tuple(mark if mark and self._kept.holder(mark) == worker else 0 for mark in before)
        size = sum(value[:1].nbytes for params in memories.values() for value in params.values())
        marks = self._kept.renew(worker, before, size)
        sent = of_rows(memories, [row for row, mark in zip(rows, known, strict=True) if not mark])
        own = {**part.own, number: sent}
        return replace(part, own=own, known=known, marks=marks, dropped=dropped)


def _loads(cohort: Cohort, errand: Errand) -> IntArray:
    """[jobs] how much there is to do for each, at least 1."""
    if isinstance(errand.order, Address):
        return np.maximum(1, cohort.steps)
    if errand.order == "test":
        return np.ones(len(cohort.jobs), dtype=np.int64)
    return np.array([max(1, len(job.rows(errand.order or "samples"))) for job in cohort.jobs], dtype=np.int64)
