"""Clients of chosen sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Partitioner, Rows
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class Sizes(Partitioner):
    """IID clients of chosen sizes: `fractions` of the rows, after `server` of them are set aside (SWA).

    Without `fractions` all are equal. Rows beyond the sum of the fractions are dropped, and so are the
    server's. SWA's table prints what is left for training: its 0.6, 0.15, 0.15 with a tenth of each client
    for validation are fractions of 2/3, 1/6, 1/6 with a holdout of 0.1 and a server of 0.01.
    """

    name: ClassVar[str] = "sizes"

    fractions: tuple[float, ...] | None = None
    server: float = 0.0

    def __post_init__(self) -> None:
        """Refuse fractions that are no fractions of one whole."""
        super().__post_init__()
        if not 0 <= self.server < 1:
            raise UserError(f"{self.name}: server must be at least 0 and below 1, not {self.server}")
        fractions = self.fractions or ()
        wrong = [fraction for fraction in fractions if not 0 < fraction <= 1]
        if wrong:
            raise UserError(f"{self.name}: a fraction must be above 0 and at most 1, not {wrong[0]}")
        if sum(fractions) > 1 + 1e-9:
            raise UserError(
                f"{self.name}: the fractions sum to {sum(fractions):g}; they may sum to at most 1"
            )

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Cut a random permutation by size, the server's part first."""
        fractions = (1 / clients,) * clients if self.fractions is None else self.fractions
        if len(fractions) != clients:
            raise UserError(
                f"{self.name}: {len(fractions)} fractions for {clients} clients; give one for each"
            )
        rows = rng.permutation(len(labels))[round(self.server * len(labels)) :]
        ends = np.rint(np.cumsum(fractions) * len(rows)).astype(np.int64)
        return np.split(rows, ends)[:-1]
