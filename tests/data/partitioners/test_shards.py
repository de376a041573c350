"""Shards of sorted rows, pairs of shards of different classes, and blocks of one class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.data.heterogeneity import class_counts
from consilience.data.partition import partition
from consilience.data.partitioners import HomogeneousBlocks, Shards, ShardsTwoClasses
from consilience.errors import UserError


def majority(labels: np.ndarray) -> int:
    return int(np.bincount(labels).argmax())


def shard_classes(labels: np.ndarray, shards: int) -> list[int]:
    size = len(labels) // shards
    return [majority(shard) for shard in np.sort(labels)[: shards * size].reshape(shards, size)]


@pytest.mark.parametrize(
    ("case", "clients", "shard"),
    [("mnist", 100, 300), ("letters", 200, 312)],
    ids=["fedavg-mnist", "fagh-letters"],
)
def test_shards_of_the_papers(case, clients, shard, mnist, sizes_of):
    labels = {"mnist": mnist, "letters": np.repeat(np.arange(26), 4800)}[case]
    made = partition(Shards(), labels, clients, 0)
    assert set(sizes_of(made)) == {2 * shard}
    assert made.dropped == 0
    counts = class_counts(labels, made.shards, int(labels.max()) + 1)
    assert (counts > 0).sum(axis=1).max() <= 4


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(20, 60), min_size=2, max_size=7),
    clients=st.integers(1, 12),
    seed=st.integers(0, 1000),
    pure=st.booleans(),
)
def test_two_class_shards_hold_or_are_refused(sizes, clients, seed, pure, rows_of):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    try:
        made = partition(ShardsTwoClasses(pure=pure), labels, clients, seed)
    except UserError:
        too_many_classes = 2 * clients < len(sizes)
        assert too_many_classes if pure else np.bincount(shard_classes(labels, 2 * clients)).max() > clients
        return
    rows = rows_of(made)
    assert len(np.unique(rows)) == len(rows) == len(labels) - made.dropped
    if pure:
        assert made.dropped == 0
        assert all(len(set(labels[shard])) == 2 for shard in made.shards)
    else:
        assert made.dropped == len(labels) % (2 * clients)
        hands = [np.split(rows, 2) for rows in made.shards]
        assert all(majority(labels[one]) != majority(labels[other]) for one, other in hands)


@pytest.mark.parametrize("classes", ["equal", "unequal"])
@pytest.mark.parametrize("pure", [False, True])
def test_two_classes_for_a_thousand_seeds(classes, pure, balanced, mnist):
    labels = {"equal": balanced, "unequal": mnist[:2000]}[classes]
    counted_as = labels.copy()
    if not pure:
        by_label = np.argsort(labels, kind="stable")
        counted_as[by_label] = np.repeat(shard_classes(labels, 20), len(labels) // 20)
    for seed in range(1000):
        made = partition(ShardsTwoClasses(pure=pure), labels, 10, seed)
        assert all(len(set(counted_as[rows])) == 2 for rows in made.shards)
        assert made.dropped == 0


def test_pure_shards_halve_each_mnist_class(mnist):
    counts = class_counts(mnist, partition(ShardsTwoClasses(pure=True), mnist, 10, 0).shards, 10)
    halves = [sorted(column[column > 0]) for column in counts.T]
    assert halves == [[size // 2, size - size // 2] for size in np.bincount(mnist)]


@pytest.mark.parametrize("clients", [1, 50, 3000])
def test_two_classes_that_leave_one_pairing_only(clients):
    labels = np.repeat([0, 1], clients)
    made = partition(ShardsTwoClasses(), labels, clients, 0)
    assert all(set(labels[rows]) == {0, 1} for rows in made.shards)


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) >= 30),
    clients=st.integers(1, 15),
    seed=st.integers(0, 1000),
)
def test_blocks_are_pure_equal_and_as_large_as_possible(sizes, clients, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    made = partition(HomogeneousBlocks(), labels, clients, seed)
    block = len(made.shards[0]) // 2
    blocks = np.stack(made.shards).reshape(2 * clients, block)
    assert len(np.unique(blocks)) == blocks.size == len(labels) - made.dropped
    assert all(len(set(labels[rows])) == 1 for rows in blocks)
    assert sum(size // (block + 1) for size in sizes) < 2 * clients


def test_homogeneous_blocks_of_fedcurv(mnist, sizes_of):
    made = partition(HomogeneousBlocks(), mnist, 96, 0)
    assert set(sizes_of(made)) == {2 * 306}
    assert made.dropped == 1248
    assert all(len(set(mnist[block])) == 1 for rows in made.shards for block in np.split(rows, 2))
