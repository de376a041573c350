"""A few shards of the rows sorted by label for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Needs, Partitioner, Rows
from consilience.data.partitioners.dealing import check_at_least, equal_shards, join


@final
@dataclass(frozen=True)
class Shards(Partitioner):
    """Rows sorted by label, cut into equal shards, a few random shards each (FedAvg)."""

    name: ClassVar[str] = "shards"

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        """Refuse clients without shards."""
        super().__post_init__()
        check_at_least(self.name, "shards_per_client", self.shards_per_client, 1)

    @property
    def needs(self) -> Needs:
        return "order"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal the shards; the rows left over after the last whole shard are dropped."""
        shards = equal_shards(self.name, labels, clients, self.shards_per_client)
        return join(shards, rng.permutation(len(shards)).reshape(clients, self.shards_per_client))
