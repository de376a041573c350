"""A worker: it has the data and a world of its own, and does the work of some clients when it is told to.

It keeps nothing of what it is told: a part of a cohort is a pure function of the message, so that any worker
may do it, and do it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from consilience.engine.determinism import Precision, repeatable
from consilience.engine.executors.base import Order, Outcome
from consilience.engine.rounds.exchange import rows_of
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

    def carry_out(self, part: Part, alike: dict[int, Arrays]) -> Done:
        """What some jobs did.

        Args:
            part: The jobs.
            alike: States with a row a replica, by their number among all.
        """
        world = self._simulation.world
        places = np.array(part.places, dtype=np.int64)
        states = {
            number: rows_of(unpacked(one, world.device), world.device, places)
            for number, one in alike.items()
        }
        states |= {number: unpacked(one, world.device) for number, one in part.own.items()}
        cohort = world.cohort(part.jobs, part.round, part.hosts)
        with repeatable(world.device, self._precision):
            outcome = world.executor.clients(
                cohort,
                self._simulation.errand(part.order),
                [states[number] for number in sorted(states)],
                shared=[unpacked(one, world.device) for one in part.shared],
            )
        return Done(
            packed(outcome.uploads),
            packed(outcome.memories),
            outcome.arrived.cpu().numpy(),
            {name: value.cpu().numpy() for name, value in outcome.tally.items()},
        )

    def close(self) -> None:
        """Give back what the world's executor holds."""
        self._simulation.world.executor.close()


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
