"""What the work of clients tells the host: who is sound, and what training logged."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from consilience.engine.executors.base import Outcome
from consilience.transfer import Late
from consilience.types import Booleans, Floats, IntArray

Jobs = tuple[tuple[int, int], ...]
"""The (replica, client) pair of every row of a cohort."""

Clients = tuple[frozenset[int], ...]
"""Some clients of every replica."""


class Told:
    """What an exchange told; a GPU is not waited for until somebody looks.

    Args:
        jobs: The (replica, client) pairs that worked.
        failed: Whose upload is lost.
        outcome: What they did.
    """

    def __init__(self, jobs: Jobs, failed: Clients, outcome: Outcome | None) -> None:
        self.jobs, self.failed = jobs, failed
        self.replicas, self.clients = np.array(jobs, dtype=np.int64).reshape(-1, 2).T
        self._tally = tuple(outcome.tally) if outcome else ()
        self._late = Late([outcome.arrived, *outcome.tally.values()]) if outcome else None

    @cached_property
    def _values(self) -> list[Floats]:
        return (
            [np.asarray(one, dtype=np.float64) for one in self._late.get()] if self._late else [np.zeros(0)]
        )

    @property
    def arrived(self) -> Booleans:
        """[jobs] whether an upload is sound."""
        return self._values[0] > 0

    def rows_of(self, replica: int) -> IntArray:
        """The rows of a replica's messages."""
        return np.flatnonzero(self.replicas == replica)

    def delivered(self, replica: int) -> IntArray:
        """The rows of messages that were not lost, sound or not."""
        rows, failed = self.rows_of(replica), self.failed[replica]
        return rows[~np.isin(self.clients[rows], list(failed))] if failed else rows

    def rejected(self, replica: int) -> frozenset[int]:
        """The clients of a replica whose messages are not sound."""
        return frozenset(self.clients[(self.replicas == replica) & ~self.arrived].tolist())

    def logged(self, name: str, replica: int, *, sound: bool = False) -> float:
        """The sum of what training logged under a name, of all clients or of sound ones."""
        if name not in self._tally:
            return 0.0
        own = self.replicas == replica
        return float(self._values[1 + self._tally.index(name)][own & self.arrived if sound else own].sum())
