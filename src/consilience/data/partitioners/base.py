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
from consilience.sweeping import Sweepable

Rows: TypeAlias = npt.NDArray[np.int64]
"""The numbers of some rows; those of one client are its shard."""
Labels: TypeAlias = npt.NDArray[Any]
"""[n] something known about each row: its class, a number to sort by, or who made it."""
Needs = Literal["nothing", "order", "classes"]
"""What a partitioner must know about targets: nothing, a number by which rows are sorted, or classes."""


@dataclass(frozen=True, kw_only=True)
class Partitioner(Sweepable, ABC):
    """A way to deal training rows to clients; its fields are its options.

    Attributes:
        holdout: The fraction of each client's rows that is kept back for its own evaluation.
        allow_empty: Whether clients without any row are accepted.
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
        """What this partitioner must know about targets."""
        return "nothing"

    @abstractmethod
    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """The rows of each client, disjoint.

        Args:
            labels: [n] the classes of the training rows, or numbers by which they are sorted.
            clients: The number of clients.
            rng: The source of every random draw.
            groups: [n] who made each row; None where the data set does not say.
        """

    @property
    def floor(self) -> int:
        """The fewest rows of a client: one left with less gets some from the largest clients; 0: never."""
        return 0

    def owners(self, shards: Sequence[Rows], groups: Labels | None) -> list[int] | None:
        """The group that each client is, whose test rows are its own; None where clients are no groups.

        Args:
            shards: The training rows of each client.
            groups: [n] who made each training row; None where the data set does not say.
        """
        return None
