"""Two shards of two different classes for each client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Needs, Partitioner, Rows
from consilience.data.partitioners.dealing import equal_shards, join, pair_different, rows_by_class
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class ShardsTwoClasses(Partitioner):
    """Two shards of two different classes for each client (HWA's second non-IID split).

    The shards are those of `shards`; where classes differ in size some of them hold two labels and count
    as the more frequent one. `pure` cuts every class by itself instead, so that no shard is mixed and the
    sizes differ.
    """

    name: ClassVar[str] = "shards_two_classes"

    pure: bool = False

    @property
    def needs(self) -> Needs:
        return "classes"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal the shards at random, then swap between clients until nobody has one class twice."""
        names, classes = np.unique(labels, return_inverse=True)
        if len(names) < 2:
            raise UserError(f"{self.name}: needs at least 2 classes, the labels have {len(names)}")
        if self.pure:
            shards = self._pure_shards(classes, clients)
        else:
            shards = equal_shards(self.name, labels, clients, 2)
        shard_classes = np.array([np.bincount(classes[rows]).argmax() for rows in shards])
        frequent = np.bincount(shard_classes)
        if frequent.max() > clients:
            raise UserError(
                f"{self.name}: class {names[frequent.argmax()]} fills {frequent.max()} of {2 * clients} "
                f"shards, but {clients} clients can take one each; set pure or choose another partitioner"
            )
        return join(shards, pair_different(shard_classes, rng))

    def _pure_shards(self, classes: Rows, clients: int) -> list[Rows]:
        """Shards of a single class, as many from every class; the largest classes give the odd ones."""
        by_class = rows_by_class(classes)
        each, odd = divmod(2 * clients, len(by_class))
        if each == 0:
            raise UserError(
                f"{self.name}: {2 * clients} pure shards cannot hold {len(by_class)} classes; "
                f"ask for at least {math.ceil(len(by_class) / 2)} clients"
            )
        largest_first = sorted(by_class, key=len, reverse=True)
        pieces = [each + (rank < odd) for rank in range(len(by_class))]
        for rows, count in zip(largest_first, pieces, strict=True):
            if len(rows) < count:
                raise UserError(
                    f"{self.name}: a class of {len(rows)} rows cannot be cut into {count} pure shards; "
                    f"ask for fewer than {clients} clients"
                )
        return [
            shard
            for rows, count in zip(largest_first, pieces, strict=True)
            for shard in np.array_split(rows, count)
        ]
