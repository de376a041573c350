"""Clients that are the groups of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Partitioner, Rows
from consilience.data.partitioners.dealing import rows_by_class
from consilience.errors import UserError


@dataclass(frozen=True)
class ByGroup(Partitioner):
    """One client for each group; fewer clients are whole groups chosen at random."""

    groups_are: ClassVar[str]
    """What the groups are called."""
    unknown: ClassVar[str]
    """What is wrong with a data set without groups, and what helps."""

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Give each client all rows of its group, in the order of the groups' numbers."""
        if groups is None:
            raise UserError(f"{self.name}: {self.unknown}")
        by_group = rows_by_class(groups)
        if clients > len(by_group):
            raise UserError(
                f"{self.name}: {clients} clients but only {len(by_group)} {self.groups_are}; "
                f"ask for at most {len(by_group)} clients"
            )
        chosen = np.sort(rng.permutation(len(by_group))[:clients])
        return [by_group[group] for group in chosen]

    def owners(self, shards: Sequence[Rows], groups: Labels | None) -> list[int] | None:
        return None if groups is None else [int(groups[shard[0]]) for shard in shards]
