"""Classes shared out over clients by Dirichlet draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Needs, Partitioner, Rows
from consilience.data.partitioners.dealing import (
    check_alpha,
    check_at_least,
    deal_counts,
    log_dirichlet,
    normalise,
    rows_by_class,
)
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class DirichletClass(Partitioner):
    """Each class is shared out by a Dirichlet(alpha) draw over the clients.

    `counts` turns the drawn proportions into counts: "cut" rounds them down cumulatively, "multinomial"
    draws. `balance` gives nothing more to clients that hold their equal share already. The draw is
    repeated, up to `max_retries` times, until every client has `min_size` rows; then rows move from the
    largest clients. HWA: alpha 0.1, no balance, min_size 1. MOON, SWA, FAGH: balance, min_size 10.
    """

    name: ClassVar[str] = "dirichlet_class"

    alpha: float = 0.1
    counts: Literal["cut", "multinomial"] = "cut"
    balance: bool = False
    min_size: int = 1
    max_retries: int = 100

    def __post_init__(self) -> None:
        """Refuse an alpha without a distribution, and sizes that contradict each other."""
        super().__post_init__()
        check_alpha(self.name, self.alpha)
        check_at_least(self.name, "min_size", self.min_size, 1)
        check_at_least(self.name, "max_retries", self.max_retries, 0)
        if self.allow_empty and self.min_size > 1:
            raise UserError(f"{self.name}: min_size {self.min_size} contradicts allow_empty; choose one")

    @property
    def floor(self) -> int:
        """The fewest rows of a client."""
        return 0 if self.allow_empty else self.min_size

    @property
    def needs(self) -> Needs:
        return "classes"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Draw counts until every client has enough, at most `max_retries` times more; then deal."""
        if self.floor * clients > len(labels):
            raise UserError(
                f"{self.name}: {clients} clients with min_size {self.floor} need {self.floor * clients} "
                f"training rows, there are {len(labels)}; lower min_size or the number of clients"
            )
        classes = rows_by_class(labels)
        for _ in range(1 + self.max_retries):
            counts = self._draw([len(rows) for rows in classes], clients, rng)
            if counts.sum(axis=0).min() >= self.floor:
                break
        return deal_counts(classes, counts, rng)

    def _draw(self, class_sizes: Sequence[int], clients: int, rng: Generator) -> Rows:
        """One draw of how many rows of each class each client gets [classes, clients]."""
        held = np.zeros(clients, dtype=np.int64)
        counts = []
        for size in class_sizes:
            # Someone is always below the equal share while rows are left to deal.
            open_to = held * clients < sum(class_sizes) if self.balance else np.ones(clients, dtype=bool)
            share = normalise(log_dirichlet(np.full(clients, self.alpha), rng), open_to)
            if self.counts == "multinomial":
                drawn = rng.multinomial(size, share)
            else:
                cumulative = np.cumsum(share)
                # Divided by its end, which rounding may leave below 1, or a closed last client gets a row.
                drawn = np.diff(np.floor(cumulative / cumulative[-1] * size).astype(np.int64), prepend=0)
            held += drawn
            counts.append(drawn)
        return np.stack(counts)
