"""Clients that are all alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Needs, Partitioner, Rows


@final
@dataclass(frozen=True)
class Iid(Partitioner):
    """Equal shares of a random permutation; `stratified`: equal shares of every class."""

    name: ClassVar[str] = "iid"

    stratified: bool = False

    @property
    def needs(self) -> Needs:
        return "classes" if self.stratified else "nothing"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal shares whose sizes differ by at most one; where stratified, so do their class counts."""
        rows = rng.permutation(len(labels))
        if not self.stratified:
            return np.array_split(rows, clients)
        by_class = rows[np.argsort(labels[rows], kind="stable")]
        return [by_class[client::clients] for client in range(clients)]
