"""The partitioners a configuration can name: IID, Dirichlet, shards, blocks, sizes and writers.

All are deterministic in the generator they get, none retries without bound, and a request that cannot be
met is refused with its numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from numpy.random import Generator

from consilience.data.dealing import (
    check_alpha,
    check_at_least,
    deal_counts,
    equal_shards,
    join,
    log_dirichlet,
    normalise,
    pair_different,
    rows_by_class,
)
from consilience.data.partition import Labels, Partitioner, Rows
from consilience.errors import UserError


@final
@dataclass(frozen=True)
class Iid(Partitioner):
    """Equal shares of a random permutation; `stratified`: equal shares of every class."""

    name: ClassVar[str] = "iid"

    stratified: bool = False

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal sizes that differ by at most one; stratified, class counts do so too."""
        rows = rng.permutation(len(labels))
        if not self.stratified:
            return np.array_split(rows, clients)
        by_class = rows[np.argsort(labels[rows], kind="stable")]
        return [by_class[client::clients] for client in range(clients)]


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
        """The smallest client accepted."""
        return 0 if self.allow_empty else self.min_size

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


@final
@dataclass(frozen=True)
class Shards(Partitioner):
    """Rows sorted by label, cut into equal shards, a few random shards each (FedAvg)."""

    name: ClassVar[str] = "shards"

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        """Refuse clients without shards."""
        super().__post_init__()
        check_at_least(self.name, "shards_per_client", self.shards_per_client, 1)

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal the shards; the rows left over after the last whole shard are dropped."""
        shards = equal_shards(self.name, labels, clients, self.shards_per_client)
        return join(shards, rng.permutation(len(shards)).reshape(clients, self.shards_per_client))


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
        """The same number of shards from every class; the largest classes give the odd ones."""
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


@final
@dataclass(frozen=True)
class HomogeneousBlocks(Partitioner):
    """Equal blocks of a single class, as large as possible, a few random ones each (FedCurv)."""

    name: ClassVar[str] = "homogeneous_blocks"

    blocks_per_client: int = 2

    def __post_init__(self) -> None:
        """Refuse clients without blocks."""
        super().__post_init__()
        check_at_least(self.name, "blocks_per_client", self.blocks_per_client, 1)

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Deal blocks of the largest size that gives enough; rows and blocks left over are dropped."""
        needed = clients * self.blocks_per_client
        if needed > len(labels):
            raise UserError(
                f"{self.name}: {clients} clients with {self.blocks_per_client} blocks each need at least "
                f"{needed} training rows, there are {len(labels)}"
            )
        classes = [rng.permutation(rows) for rows in rows_by_class(labels)]
        sizes = np.array([len(rows) for rows in classes])
        # The number of blocks never grows with their size, so the sizes that give enough come first.
        block = bisect_right(range(1, sizes.max() + 1), -needed, key=lambda size: -int((sizes // size).sum()))
        blocks = [
            rows[start : start + block]
            for rows in classes
            for start in range(0, len(rows) - block + 1, block)
        ]
        return join(blocks, rng.permutation(len(blocks))[:needed].reshape(clients, self.blocks_per_client))


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


@final
@dataclass(frozen=True)
class ByWriter(Partitioner):
    """One client for each writer (LEAF's FEMNIST); fewer clients are whole writers chosen at random."""

    name: ClassVar[str] = "by_writer"

    def split(self, labels: Labels, clients: int, rng: Generator, groups: Labels | None) -> list[Rows]:
        """Give each client all rows of its writer, in the order of the writers' numbers."""
        if groups is None:
            raise UserError(f"{self.name}: the data set does not say who wrote its rows; use one with groups")
        by_writer = rows_by_class(groups)
        if clients > len(by_writer):
            raise UserError(
                f"{self.name}: {clients} clients but only {len(by_writer)} writers; "
                f"ask for at most {len(by_writer)} clients"
            )
        chosen = np.sort(rng.permutation(len(by_writer))[:clients])
        return [by_writer[writer] for writer in chosen]

    def test_rows(
        self, shards: Sequence[Rows], groups: Labels | None, test_groups: Labels | None
    ) -> list[Rows]:
        """The test rows of each client's writer."""
        if groups is None or test_groups is None:
            return super().test_rows(shards, groups, test_groups)
        return [np.flatnonzero(test_groups == groups[shard[0]]) for shard in shards]


PARTITIONERS: dict[str, type[Partitioner]] = {
    kind.name: kind
    for kind in (
        Iid,
        DirichletClass,
        DirichletClient,
        Shards,
        ShardsTwoClasses,
        HomogeneousBlocks,
        Sizes,
        ByWriter,
    )
}
