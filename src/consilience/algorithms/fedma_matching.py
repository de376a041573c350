"""Which hidden units of several clients are one unit: the matching of FedMA.

The model is that of PFNM: common units ("atoms") are drawn from N(0, sigma0^2), a client's units from
N(atom, sigma^2), and which atoms a client has from a Beta-Bernoulli process of mass gamma. Of an atom with c
units let S be their sum / sigma^2 and P = 1/sigma0^2 + c/sigma^2. That a further unit x is that atom, among J
clients, gains

    |S + x/sigma^2|^2 / (P + 1/sigma^2) - |S|^2 / P + kappa log(c / (J - c)),

and that it is the m-th new atom of its client

    |x/sigma^2|^2 / (1/sigma0^2 + 1/sigma^2) - 2 log m + 2 log(gamma / J).

A client's units go to different atoms so that the sum is largest, which the Hungarian algorithm finds. The
first client's units are the first atoms; then all clients are matched in turn, and again, without their own
units, in some number of sweeps. c is at most 10 in the logarithm, as in the authors' release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.learning.chain import assigned
from consilience.types import Floats, IntArray

MOST_POPULAR = 10
"""The most units of an atom that count for its popularity."""


@dataclass(frozen=True)
class Prior:
    """What is believed of units before they are seen."""

    sigma: float
    """How far a client's unit is from the common one."""
    sigma0: float
    """How large common units are."""
    gamma: float
    """How readily there are new ones."""
    kappa: float
    """How much it counts that many clients have a unit."""


def match(units: Sequence[Floats], prior: Prior, most: int, sweeps: int) -> tuple[list[IntArray], int]:
    """The atom of every unit of every client, and how many atoms there are; the first client's come first.

    Args:
        units: [units, size] the incoming weights of each client's units; those of the first come first.
        prior: What is believed of them.
        most: How many atoms there may be; no fewer than a client has units.
        sweeps: How often every client is matched anew.
    """
    first, *others = units
    atoms = _Atoms(first.copy(), np.ones(len(first)))
    places: list[IntArray] = [np.arange(len(first), dtype=np.int64)]
    for one in others:
        places.append(atoms.best(one, prior, len(units), most))
        atoms.add(one, places[-1])
    for _ in range(sweeps if others else 0):
        for client, one in enumerate(units):
            atoms.remove(one, places[client])
            kept = atoms.drop_empty()
            places = [kept[own] for own in places]  # what this client had may be gone
            places[client] = atoms.best(one, prior, len(units), most)
            atoms.add(one, places[client])
    return _numbered(places, len(atoms.counts)), len(atoms.counts)


def _numbered(places: Sequence[IntArray], atoms: int) -> list[IntArray]:
    """The same atoms with other numbers: those of the first client's units first, in their order."""
    order = np.concatenate([places[0], np.setdiff1d(np.arange(atoms), places[0])])
    numbers = np.argsort(order)
    return [numbers[own] for own in places]


def sums(units: Sequence[Floats], places: Sequence[IntArray], atoms: int) -> tuple[Floats, Floats]:
    """[atoms, size] the sum of the units of every atom, and [atoms] how many there are."""
    totals, counts = np.zeros((atoms, units[0].shape[1])), np.zeros(atoms)
    for one, own in zip(units, places, strict=True):
        totals[own] += one
        counts[own] += 1
    return totals, counts


def sources(places: Sequence[IntArray], atoms: int) -> IntArray:
    """[clients, atoms] which of its units each client has in an atom; their number where it has none."""
    table = np.full((len(places), atoms), len(places[0]), dtype=np.int64)
    for row, own in zip(table, places, strict=True):
        row[own] = np.arange(len(own))
    return table


@dataclass
class _Atoms:
    """Common units: the sums of those that were matched, and their numbers."""

    totals: Floats
    counts: Floats

    def best(self, units: Floats, prior: Prior, clients: int, most: int) -> IntArray:
        """The best atoms for a client's units; numbers beyond the last are new ones."""
        noise, spread = prior.sigma**2, prior.sigma0**2
        sums, precision = self.totals / noise, 1 / spread + self.counts / noise
        squares, own = (sums**2).sum(1), (units**2).sum(1)[:, None] / noise**2
        together = squares + 2 * (units @ sums.T) / noise + own
        popular = np.minimum(self.counts, MOST_POPULAR)
        odds = np.log(
            popular / np.maximum(clients - popular, 1)
        )  # without its own it is no more than all others
        known = together / (precision + 1 / noise) - squares / precision + prior.kappa * odds
        room = min(len(units), most - len(self.counts))
        later = 2 * np.log(prior.gamma / clients) - 2 * np.log(np.arange(1, room + 1))
        new = own / (1 / spread + 1 / noise) + later
        chosen = assigned(np.hstack([known, new]))
        fresh = chosen >= len(self.counts)  # in any order they gain the same: theirs is that of the units
        return np.where(fresh, len(self.counts) + np.cumsum(fresh) - 1, chosen)

    def add(self, units: Floats, places: IntArray) -> None:
        """Add a client's units to atoms."""
        new = max(0, int(places.max()) + 1 - len(self.counts))
        self.totals = np.vstack([self.totals, np.zeros((new, units.shape[1]))])
        self.counts = np.append(self.counts, np.zeros(new))
        self.totals[places] += units
        self.counts[places] += 1

    def remove(self, units: Floats, places: IntArray) -> None:
        """Take a client's units out again."""
        self.totals[places] -= units
        self.counts[places] -= 1

    def drop_empty(self) -> IntArray:
        """Drop atoms without units; gives the new number of every atom."""
        alive = self.counts > 0
        self.totals, self.counts = self.totals[alive], self.counts[alive]
        return np.cumsum(alive) - 1
