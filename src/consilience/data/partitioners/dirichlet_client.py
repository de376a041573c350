"""Clients of equal size with mixes of classes drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Needs, Partitioner, Rows
from consilience.data.partitioners.dealing import (
    check_alpha,
    deal_counts,
    log_dirichlet,
    normalise,
    rows_by_class,
)
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class DirichletClient(Partitioner):
    """Clients of equal size, each with its own Dirichlet(alpha) mix of classes (Hsu et al. 2019)."""

    name: ClassVar[str] = "dirichlet_client"

    alpha: float = 0.1

    def __post_init__(self) -> None:
        """Refuse an alpha without a distribution."""
        super().__post_init__()
        check_alpha(self.name, self.alpha)

    @property
    def needs(self) -> Needs:
        return "classes"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal n // clients rows to each, from its mix renormalised over the classes not used up."""
        size = len(labels) // clients
        if size == 0:
            raise UserError(
                f"{self.name}: {clients} clients cannot have an equal share of {len(labels)} rows"
            )
        classes = rows_by_class(labels)
        stock = np.array([len(rows) for rows in classes])
        prior = np.full(len(classes), 1 / len(classes))
        counts = np.zeros((len(classes), clients), dtype=np.int64)
        for client in range(clients):
            mix = log_dirichlet(self.alpha * prior, rng)
            # Drawing all at once and drawing again what hit an empty class has the distribution of drawing
            # one by one. Each repetition empties a class, so there are at most as many as classes.
            while (missing := size - counts[:, client].sum()) > 0:
                drawn = rng.multinomial(missing, normalise(mix, stock > 0))
                taken = np.minimum(drawn, stock)
                counts[:, client] += taken
                stock -= taken
        return deal_counts(classes, counts, rng)
