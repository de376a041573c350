"""Who holds which rows, by running a partitioner.

A partitioner says how the training rows are dealt to the clients; `partition` seeds it, checks what it
did, keeps rows back for the clients' own evaluation and writes down how it was done.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.random import Generator, Philox

from consilience.data.partitioners.base import Labels, Partitioner, Rows
from consilience.errors import UserError

PARTITION_STREAM = 0x7061_7274_6974_696F
"""The second word of the generator's key: partitions share no random numbers with other uses of a seed."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rows of a data set each client holds.

    Attributes:
        shards: The training rows that each client learns from.
        holdouts: The rows of each client that are kept back for its own evaluation, if any. A row number
            `r` not below the number of training rows means row `r - training rows` of the test set.
        recipe: How it was made: name, options, seed, clients, and `moved`, the number of rows taken from
            the largest clients because the draw left others too small.
        dropped: The number of training rows that nobody holds.
        names: What the clients are called, where they have names.
    """

    shards: tuple[Rows, ...]
    holdouts: tuple[Rows, ...]
    recipe: dict[str, object]
    dropped: int
    names: tuple[str, ...] = ()

    def manifest(self) -> dict[str, object]:
        """The recipe, the sizes and a digest of every row number, ready for JSON."""
        digest = hashlib.sha256()
        for rows in (*self.shards, *self.holdouts):
            # The length goes first, so that moving a row to the next client changes the digest.
            digest.update(len(rows).to_bytes(8, "little") + rows.astype("<i8").tobytes())
        return {
            "recipe": self.recipe,
            **({"clients": list(self.names)} if self.names else {}),
            "sizes": [len(rows) for rows in self.shards],
            "holdout_sizes": [len(rows) for rows in self.holdouts],
            "dropped": self.dropped,
            "sha256": digest.hexdigest(),
        }


def partition(
    partitioner: Partitioner,
    labels: Labels,
    clients: int,
    seed: int,
    *,
    groups: Labels | None = None,
    test_groups: Labels | None = None,
    names: Sequence[str] = (),
) -> Partition:
    """The partition of a training set over clients; the same arguments always give the same one.

    Args:
        partitioner: How rows are dealt.
        labels: [n] the class of each training row.
        clients: The number of clients.
        seed: A number from 0 to 2**64 - 1.
        groups: [n] who made each training row, for partitioners that follow it.
        test_groups: Who made each test row, so that clients which are groups evaluate on their own.
        names: What the groups are called, so that clients which are groups are called so, too.

    Raises:
        UserError: The request cannot be met.
    """
    rows = len(labels)
    if not 0 <= seed < 2**64:
        raise UserError(f"the seed of a partition must be from 0 to 2**64 - 1, not {seed}")
    if clients < 1:
        raise UserError(f"a partition needs at least 1 client, not {clients}")
    if clients > rows and not partitioner.allow_empty:
        raise UserError(
            f"{partitioner.name}: {clients} clients cannot share {rows} training rows; "
            f"ask for at most {rows} clients"
        )
    if groups is not None and len(groups) != rows:
        raise UserError(f"there are {len(groups)} groups for {rows} training rows; give one for each row")

    key = np.array([seed, PARTITION_STREAM], dtype=np.uint64)
    rng = Generator(Philox(key=key))
    dealt = [np.asarray(shard, dtype=np.int64) for shard in partitioner.split(labels, clients, rng, groups)]
    _check(partitioner.name, dealt, clients, rows)
    dealt, moved = _top_up(dealt, partitioner.floor, rng)
    empty = [client for client, shard in enumerate(dealt) if len(shard) == 0]
    if empty and not partitioner.allow_empty:
        raise UserError(
            f"{partitioner.name}: {len(empty)} of {clients} clients hold none of the {rows} training rows "
            f"(the first is client {empty[0]}); ask for fewer clients or set allow_empty"
        )

    held = [_hold_out(shard, partitioner.holdout, rng) for shard in dealt]
    owners = partitioner.owners(dealt, groups)
    own_tests = [np.empty(0, dtype=np.int64) for _ in dealt]
    if owners is not None and test_groups is not None:
        own_tests = [np.flatnonzero(test_groups == owner) for owner in owners]
    options = {
        option: list(value) if isinstance(value, tuple) else value
        for option, value in asdict(partitioner).items()
    }
    return Partition(
        shards=tuple(kept for kept, _ in held),
        holdouts=tuple(
            np.concatenate([back, rows + own]) for (_, back), own in zip(held, own_tests, strict=True)
        ),
        recipe={
            "name": partitioner.name,
            "options": options,
            "seed": seed,
            "clients": clients,
            "moved": moved,
        },
        dropped=rows - sum(map(len, dealt)),
        names=tuple(names[owner] for owner in owners or ()) if names else (),
    )


def _check(name: str, shards: Sequence[Rows], clients: int, rows: int) -> None:
    """Refuse what a partitioner must never return (a user's own may)."""
    if len(shards) != clients:
        raise UserError(f"{name} made {len(shards)} shards for {clients} clients")
    dealt = np.concatenate(shards)
    if dealt.size and (dealt.min() < 0 or dealt.max() >= rows):
        raise UserError(f"{name} dealt a row outside the {rows} training rows")
    different = np.count_nonzero(np.bincount(dealt, minlength=1))
    if different < dealt.size:
        raise UserError(f"{name} dealt {dealt.size - different} rows more than once")


def _top_up(shards: list[Rows], floor: int, rng: Generator) -> tuple[list[Rows], int]:
    """Fill every shard to `floor` rows, each row taken at random from the shard then largest.

    Returns:
        The shards, and how many rows moved.
    """
    missing = [max(floor - len(shard), 0) for shard in shards]
    moved = sum(missing)
    if moved == 0:
        return shards, 0
    largest = [(-len(shard), client) for client, shard in enumerate(shards)]
    heapq.heapify(largest)
    given = [0] * len(shards)
    for _ in range(moved):
        size, client = largest[0]
        given[client] += 1
        heapq.heapreplace(largest, (size + 1, client))
    parted = [_part(shard, count, rng) for shard, count in zip(shards, given, strict=True)]
    pool = rng.permutation(np.concatenate([taken for _, taken in parted]))
    gifts = np.split(pool, np.cumsum(missing)[:-1])
    return [np.concatenate([kept, gift]) for (kept, _), gift in zip(parted, gifts, strict=True)], moved


def _hold_out(shard: Rows, fraction: float, rng: Generator) -> tuple[Rows, Rows]:
    """The rows to train on, at least one if there is any, and those kept back."""
    return _part(shard, max(min(round(fraction * len(shard)), len(shard) - 1), 0), rng)


def _part(shard: Rows, count: int, rng: Generator) -> tuple[Rows, Rows]:
    """A shard in two parts, both in order: what stays, and `count` rows that are taken out at random."""
    taken = np.zeros(len(shard), dtype=bool)
    taken[rng.permutation(len(shard))[:count]] = True
    return shard[~taken], shard[taken]
