"""The executor that lets workers do clients' work; hubs and single models stay where it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from consilience import tree
from consilience.engine.executors.base import Errand, Executor, Outcome
from consilience.engine.executors.scheduling import pack
from consilience.engine.spread.worker import Arrays, Done, Part, gathered, packed
from consilience.exchange.address import Address
from consilience.exchange.cohort import Cohort
from consilience.transfer import to_device
from consilience.types import IntArray, State

T = TypeVar("T")


class Workers(Protocol):
    """Where workers are, and how they are reached."""

    def count(self) -> int:
        """How many there are now; at least one."""

    def carry_out(self, parts: Sequence[Part], alike: dict[int, Arrays]) -> list[Done]:
        """What the jobs of each part did; who is lost on the way is replaced, and the part done again."""

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
        if errand.order is None or len(cohort.jobs) == 1:
            return self.here.clients(cohort, errand, states, shared=shared)
        loads = _loads(cohort, errand)
        shares = [sorted(own) for own in pack(loads, self.workers.count())]
        _, first, places = np.unique(
            [job.replica for job in cohort.jobs], return_index=True, return_inverse=True
        )
        chosen = to_device(first, cohort.device)
        alike = {number: packed(tree.index(states[number], chosen)) for number in sorted(errand.alike)}
        own = {number: packed(one) for number, one in enumerate(states) if number not in errand.alike}
        common = [packed(one) for one in shared]
        parts = [_part(cohort, errand, rows, places, own, common) for rows in shares]
        return gathered(self.workers.carry_out(parts, alike), shares, cohort.device)


def _loads(cohort: Cohort, errand: Errand) -> IntArray:
    """[jobs] how much there is to do for each, at least 1."""
    if isinstance(errand.order, Address):
        return np.maximum(1, cohort.steps)
    if errand.order == "test":
        return np.ones(len(cohort.jobs), dtype=np.int64)
    return np.array([max(1, len(job.rows(errand.order or "samples"))) for job in cohort.jobs], dtype=np.int64)


def _part(
    cohort: Cohort,
    errand: Errand,
    rows: Sequence[int],
    places: IntArray,
    own: dict[int, Arrays],
    shared: list[Arrays],
) -> Part:
    jobs = [cohort.jobs[row] for row in rows]
    hosts = tuple(job.host for job in jobs if job.host is not None)
    assert errand.order is not None
    return Part(
        errand.order,
        cohort.round,
        tuple((job.replica, job.client) for job in jobs),
        hosts or None,
        tuple(places[list(rows)].tolist()),
        {
            number: {g: {n: v[list(rows)] for n, v in params.items()} for g, params in one.items()}
            for number, one in own.items()
        },
        shared,
    )
