"""The contract of a partitioner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from consilience.errors import UserError

Rows: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[Any]
Needs = Literal["nothing", "order", "classes"]
"""What a partitioner must know about targets: nothing, a number by which rows are sorted, or classes."""


@dataclass(frozen=True, kw_only=True)
class Partitioner(ABC):
    """A way to deal training rows to clients; its fields are its options.

    Attributes:
        holdout: fraction of each client's rows kept back for its own evaluation.
        allow_empty: accept clients without any row.
    """

    name: ClassVar[str]

    holdout: float = 0.0
    allow_empty: bool = False

    def __post_init__(self) -> None:
        """Refuse options that no data set could satisfy."""
        if not 0 <= self.holdout < 1:
            raise UserError(f"{self.name}: holdout must be at least 0 and below 1, not {self.holdout}")

    @property
    def needs(self) -> Needs:
        """What it must know about targets."""
        return "nothing"

    @abstractmethod
    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal the rows of `labels` [n] to the clients: one array of row numbers each, disjoint."""

    @property
    def floor(self) -> int:
        """Clients left with fewer rows than this get some from the largest clients; 0: never."""
        return 0

    def test_rows(
        self, shards: Sequence[Rows], groups: Labels | None, test_groups: Labels | None
    ) -> list[Rows]:
        """The rows of the test set that belong to each client: none, unless clients are groups."""
        return [np.empty(0, dtype=np.int64) for _ in shards]
