"""What the work of clients tells the host: who is sound, and what training logged."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from consilience.engine.executors.base import Outcome
from consilience.transfer import Late
from consilience.types import Booleans, Floats

Jobs = tuple[tuple[int, int], ...]
"""The (replica, client) pair of every row of a cohort."""

Clients = tuple[frozenset[int], ...]
"""Some clients of every replica."""


class Told:
    """What an exchange told; a GPU is not waited for until somebody looks.

    Args:
        jobs: Who worked.
        failed: Whose upload is lost.
        outcome: What they did.
    """

    def __init__(self, jobs: Jobs, failed: Clients, outcome: Outcome | None) -> None:
        self.jobs, self.failed = jobs, failed
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

    def rows_of(self, replica: int) -> list[int]:
        """The rows of a replica's messages."""
        return [row for row, (index, _) in enumerate(self.jobs) if index == replica]

    def delivered(self, replica: int) -> list[int]:
        """The rows of messages that were not lost, sound or not."""
        return [row for row in self.rows_of(replica) if self.jobs[row][1] not in self.failed[replica]]

    def rejected(self, replica: int) -> frozenset[int]:
        """The clients of a replica whose messages are not sound."""
        arrived = self.arrived
        return frozenset(self.jobs[row][1] for row in self.rows_of(replica) if not arrived[row])

    def logged(self, name: str, replica: int, *, sound: bool = False) -> float:
        """The sum of what training logged under a name, of all clients or of sound ones."""
        if name not in self._tally:
            return 0.0
        arrived, values = self.arrived, self._values[1 + self._tally.index(name)]
        rows = [row for row in self.rows_of(replica) if arrived[row] or not sound]
        return float(values[rows].sum())
