"""How rows are dealt to clients: the moves that partitioners share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from consilience.data.partitioners.base import Labels, Rows
from consilience.errors import UserError

Numbers: TypeAlias = npt.NDArray[np.float64]


def check_alpha(name: str, alpha: float) -> None:
    """Refuse a concentration that is not a finite number above 0."""
    if not (alpha > 0 and math.isfinite(alpha)):
        raise UserError(f"{name}: alpha must be a finite number above 0, not {alpha}")


def check_at_least(name: str, option: str, value: int, least: int) -> None:
    """Refuse an option below its least value."""
    if value < least:
        raise UserError(f"{name}: {option} must be at least {least}, not {value}")


def rows_by_class(labels: Labels) -> list[Rows]:
    """The rows of each value that occurs, in the order of the values."""
    _, sizes = np.unique(labels, return_counts=True)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])


def log_dirichlet(concentration: Numbers, rng: Generator) -> Numbers:
    """The logarithm of a Dirichlet draw, up to a constant.

    Gamma(a) is Gamma(a + 1) * U**(1/a). In logarithms that neither underflows nor becomes 0 / 0 however
    small the concentration is; the limit is a draw with all its mass on one entry.
    """
    bounded = np.maximum(concentration, 1e-300)
    return np.log(rng.standard_gamma(bounded + 1)) - rng.standard_exponential(len(bounded)) / bounded


def normalise(log_weights: Numbers, allowed: npt.NDArray[np.bool_]) -> Numbers:
    """Probabilities proportional to the weights of the allowed entries, 0 for the others."""
    masked = np.where(allowed, log_weights, -np.inf)
    weights = np.exp(masked - masked.max())
    probabilities: Numbers = weights / weights.sum()
    return probabilities


def deal_counts(classes: Sequence[Rows], counts: Rows, rng: Generator) -> list[Rows]:
    """The rows of each client: client k gets `counts[c, k]` random rows of class c, classes in order."""
    pieces = [
        np.split(rng.permutation(rows), np.cumsum(count))[:-1]
        for rows, count in zip(classes, counts, strict=True)
    ]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def equal_shards(name: str, labels: Labels, clients: int, shards_per_client: int) -> list[Rows]:
    """Shards: rows sorted by label and cut into equal pieces, without what is left over.

    Args:
        name: The partitioner that asks, for the text of an error.
        labels: [n] what rows are sorted by.
        clients: The number of clients.
        shards_per_client: How many shards each of them gets.
    """
    count = clients * shards_per_client
    size = len(labels) // count
    if size == 0:
        raise UserError(
            f"{name}: {clients} clients with {shards_per_client} shards each need at least {count} "
            f"training rows, there are {len(labels)}"
        )
    return list(np.argsort(labels, kind="stable")[: count * size].reshape(count, size))


def join(shards: Sequence[Rows], hands: Rows) -> list[Rows]:
    """The rows of each client, from the numbers of its shards in `hands` [clients, shards per client]."""
    return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]


def pair_different(classes: Rows, rng: Generator) -> Rows:
    """[clients, 2] numbers of shards, in pairs of different classes.

    Args:
        classes: [shards] the class of each shard; no class may have more than half of them.
        rng: The source of every random draw.
    """
    clients = len(classes) // 2
    for _ in range(10):
        hands = rng.permutation(len(classes)).reshape(clients, 2)
        for _ in range(1000):
            first, second = classes[hands].T
            equal = np.flatnonzero(first == second)
            if len(equal) == 0:
                return hands
            giver, taker, slot = equal[0], rng.integers(clients), rng.integers(2)
            # Only swaps after which both hands differ: they end one conflict and start none.
            if first[giver] not in classes[hands[taker]]:
                hands[giver, 0], hands[taker, slot] = hands[taker, slot], hands[giver, 0]
    # Sorted by class, shards half the list apart always differ: a class spans at most half of it.
    shuffled = rng.permutation(classes.max() + 1)[classes]
    return np.argsort(shuffled, kind="stable").reshape(2, clients).T
