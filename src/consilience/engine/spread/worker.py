"""A worker: it has the data and a world of its own, and does the work of some clients when it is told to.

A part of a cohort is a pure function of the message, so that any worker may do it, and do it again. Memories
that a worker has made it keeps under their marks, so that they need not come back to it; who sends the parts
has them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from consilience.engine.determinism import Precision, repeatable
from consilience.engine.executors.base import Order, Outcome, joined
from consilience.engine.rounds.exchange import renewed, rows_of
from consilience.engine.rounds.simulation import Simulation
from consilience.transfer import to_device
from consilience.types import State

Arrays = dict[str, dict[str, npt.NDArray[np.generic]]]
"""A State as it travels."""


@dataclass(frozen=True)
class Part:
    """The work of some of a cohort's jobs."""

    order: Order
    round: int
    jobs: tuple[tuple[int, int], ...]
    """The replica and the client of each."""
    hosts: tuple[int, ...] | None
    """Whom each of them answers, where they do."""
    places: tuple[int, ...]
    """The row of each in the states that are alike for all jobs of a replica."""
    own: dict[int, Arrays]
    """States with a row a job, by their number among all."""
    shared: list[Arrays]
    """States that all of them see whole."""
    known: tuple[int, ...] = ()
    """The marks of the memories that the worker has, one a job; 0: it comes along, in the order of jobs."""
    marks: tuple[int, ...] = ()
    """Those under which it is to keep the new ones."""
    dropped: tuple[int, ...] = ()
    """Those of memories that it need not keep any longer."""
    batches: tuple[int, ...] = ()
    """Which batches of the test set a single job is about, where not all; each has an outcome of its own."""

    def of(self, rows: Sequence[int]) -> Part:
        """The part of some of the jobs."""
        return replace(
            self,
            jobs=tuple(self.jobs[row] for row in rows),
            hosts=self.hosts and tuple(self.hosts[row] for row in rows),
            places=tuple(self.places[row] for row in rows),
            own={number: of_rows(one, rows) for number, one in self.own.items()},
        )


@dataclass(frozen=True)
class Done:
    """An `Outcome` as it travels."""

    uploads: Arrays
    memories: Arrays
    arrived: npt.NDArray[np.bool_]
    tally: dict[str, npt.NDArray[np.generic]]


class Worker:
    """What carries out parts of cohorts.

    Args:
        make: Makes a simulation of the same setting as the one that sends the parts.
        precision: How exact products are on a GPU.
    """

    def __init__(self, make: Callable[[], Simulation], precision: Precision) -> None:
        self._simulation, self._precision = make(), precision
        self._kept: dict[int, Arrays] = {}
        """Memories by their marks."""

    def carry_out(self, part: Part, alike: dict[int, Arrays]) -> Done | None:
        """What some jobs did; None where memories are missing that it should have kept.

        Args:
            part: The jobs.
            alike: States with a row a replica, by their number among all.
        """
        if any(mark and mark not in self._kept for mark in part.known):
            return None
        world = self._simulation.world
        places = np.array(part.places, dtype=np.int64)
        states = {
            number: rows_of(unpacked(one, world.device), world.device, places)
            for number, one in alike.items()
        }
        errand = self._simulation.errand(part.order)
        for mark in part.dropped:
            self._kept.pop(mark, None)
        own = part.own
        if errand.remembered is not None and any(part.known):
            own = {**own, errand.remembered: self._recalled(part, own.get(errand.remembered, {}))}
        states |= {number: unpacked(one, world.device) for number, one in own.items()}
        cohort = world.cohort(part.jobs, part.round, part.hosts)
        given = [states[number] for number in sorted(states)]
        shared = [unpacked(one, world.device) for one in part.shared]
        some = [cohort.on_test_batch(number) for number in part.batches] or [cohort]
        with repeatable(world.device, self._precision):
            outcome = joined([world.executor.clients(one, errand, given, shared=shared) for one in some])
        memories = packed(outcome.memories)
        if errand.remembered is not None and part.marks:
            all_sound = bool(outcome.arrived.all())
            new = memories if all_sound else packed(renewed(states[errand.remembered], outcome))
            for row, mark in enumerate(part.marks):
                self._kept[mark] = of_rows(new, [row])
        return Done(
            packed(outcome.uploads),
            memories,
            outcome.arrived.cpu().numpy(),
            {name: value.cpu().numpy() for name, value in outcome.tally.items()},
        )

    def _recalled(self, part: Part, sent: Arrays) -> Arrays:
        """The memories of all jobs: those that came along, and those that are here."""
        came = iter(range(len(part.known)))
        each = [self._kept.pop(mark) if mark else of_rows(sent, [next(came)]) for mark in part.known]
        return {
            group: {name: np.concatenate([one[group][name] for one in each]) for name in params}
            for group, params in each[0].items()
        }

    def close(self) -> None:
        """Give back what the world's executor holds."""
        self._simulation.world.executor.close()


def _map(function: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]], arrays: Arrays) -> Arrays:
    return {
        group: {name: function(value) for name, value in params.items()} for group, params in arrays.items()
    }


def of_rows(arrays: Arrays, rows: Sequence[int]) -> Arrays:
    """Some rows of stacked arrays."""
    return _map(lambda value: value[list(rows)], arrays)


def packed(state: State) -> Arrays:
    """A State for a journey."""
    return {
        group: {name: value.detach().cpu().numpy() for name, value in params.items()}
        for group, params in state.items()
    }


def unpacked(arrays: Arrays, device: torch.device) -> State:
    """A State after its journey; what arrives is read-only, so it is copied."""
    return {
        group: {name: to_device(np.array(value), device) for name, value in params.items()}
        for group, params in arrays.items()
    }


def gathered(parts: Sequence[Done], jobs: Sequence[Sequence[int]], device: torch.device) -> Outcome:
    """The outcome of all jobs, in their order, from that of parts with some of them each."""
    count = sum(len(own) for own in jobs)

    def table(columns: Sequence[npt.NDArray[np.generic]]) -> torch.Tensor:
        whole = np.empty((count, *columns[0].shape[1:]), dtype=columns[0].dtype)
        for rows, column in zip(jobs, columns, strict=True):
            whole[list(rows)] = column
        return to_device(whole, device)

    def state(all_of: Sequence[Arrays]) -> State:
        return {
            group: {name: table([one[group][name] for one in all_of]) for name in params}
            for group, params in all_of[0].items()
        }

    return Outcome(
        state([part.uploads for part in parts]),
        state([part.memories for part in parts]),
        table([part.arrived for part in parts]),
        {name: table([part.tally[name] for part in parts]) for name in parts[0].tally},
    )
