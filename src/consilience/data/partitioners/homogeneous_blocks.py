"""A few blocks of a single class for each client."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Needs, Partitioner, Rows
from consilience.data.partitioners.dealing import check_at_least, join, rows_by_class
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class HomogeneousBlocks(Partitioner):
    """Equal blocks of a single class, as large as possible, a few random ones each (FedCurv)."""

    name: ClassVar[str] = "homogeneous_blocks"

    blocks_per_client: int = 2

    def __post_init__(self) -> None:
        """Refuse clients without blocks."""
        super().__post_init__()
        check_at_least(self.name, "blocks_per_client", self.blocks_per_client, 1)

    @property
    def needs(self) -> Needs:
        return "classes"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal blocks of the largest size that gives enough; rows and blocks left over are dropped."""
        needed = clients * self.blocks_per_client
        if needed > len(labels):
            raise UserError(
                f"{self.name}: {clients} clients with {self.blocks_per_client} blocks each need at least "
                f"{needed} training rows, there are {len(labels)}"
            )
        classes = [rng.permutation(rows) for rows in rows_by_class(labels)]
        sizes = np.array([len(rows) for rows in classes])
        # The number of blocks never grows with their size, so the sizes that give enough come first.
        block = bisect_right(range(1, sizes.max() + 1), -needed, key=lambda size: -int((sizes // size).sum()))
        blocks = [
            rows[start : start + block]
            for rows in classes
            for start in range(0, len(rows) - block + 1, block)
        ]
        return join(blocks, rng.permutation(len(blocks))[:needed].reshape(clients, self.blocks_per_client))
