"""A client for each writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Partitioner, Rows
from consilience.data.partitioners.dealing import rows_by_class
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class ByWriter(Partitioner):
    """One client for each writer (LEAF's FEMNIST); fewer clients are whole writers chosen at random."""

    name: ClassVar[str] = "by_writer"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Give each client all rows of its writer, in the order of the writers' numbers."""
        if groups is None:
            raise UserError(f"{self.name}: the data set does not say who wrote its rows; use one with groups")
        by_writer = rows_by_class(groups)
        if clients > len(by_writer):
            raise UserError(
                f"{self.name}: {clients} clients but only {len(by_writer)} writers; "
                f"ask for at most {len(by_writer)} clients"
            )
        chosen = np.sort(rng.permutation(len(by_writer))[:clients])
        return [by_writer[writer] for writer in chosen]

    def test_rows(
        self, shards: Sequence[Rows], groups: Labels | None, test_groups: Labels | None
    ) -> list[Rows]:
        """The test rows of each client's writer."""
        if groups is None or test_groups is None:
            return super().test_rows(shards, groups, test_groups)
        return [np.flatnonzero(test_groups == groups[shard[0]]) for shard in shards]
