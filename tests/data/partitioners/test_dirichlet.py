"""Dirichlet draws, over the clients for each class or over the classes for each client."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from consilience.data.heterogeneity import class_counts
from consilience.data.partition import partition
from consilience.data.partitioners import DirichletClass, DirichletClient


@pytest.mark.parametrize(
    "partitioner",
    [DirichletClass(1e7), DirichletClass(1e7, counts="multinomial"), DirichletClient(1e7)],
    ids=str,
)
def test_large_alpha_is_uniform(partitioner):
    labels = np.repeat(np.arange(10), 500)
    # The last clients of dirichlet_client get what the others left.
    counts = class_counts(labels, partition(partitioner, labels, 10, 0).shards[:7], 10)
    assert stats.chisquare(counts.ravel()).pvalue > 0.01
    small = dataclasses.replace(partitioner, alpha=1.0)
    skewed = class_counts(labels, partition(small, labels, 10, 0).shards[:7], 10)
    assert stats.chisquare(skewed.ravel()).pvalue < 1e-6


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_dirichlet_shares_have_the_right_moments(alpha, sizes_of):
    # One class of many rows shows the shares themselves: mean 1/k, variance (k - 1) / (k^2 (k alpha + 1)).
    labels, clients = np.zeros(2000, dtype=np.int64), 5
    shares = np.array(
        [
            sizes_of(partition(DirichletClass(alpha, allow_empty=True), labels, clients, seed))
            for seed in range(400)
        ]
    ) / len(labels)
    expected = (clients - 1) / clients**2 / (clients * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(1 / clients, abs=4 * np.sqrt(expected / 400))
    assert shares.var(axis=0).mean() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("counts", ["cut", "multinomial"])
@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("alpha", [0.01, 1e-3, 1e-12, 5e-324])
def test_tiny_alpha_gives_one_client_each_class(alpha, balance, counts, balanced, sizes_of):
    made = partition(DirichletClass(alpha, counts, balance), balanced, 50, 0)
    assert sum(sizes_of(made)) == len(balanced)
    assert min(sizes_of(made)) >= 1
    assert made.recipe["moved"] > 0


def test_tiny_alpha_for_each_client(balanced):
    counts = class_counts(balanced, partition(DirichletClient(1e-12), balanced, 10, 0).shards, 10)
    assert set(counts.sum(axis=1)) == {100}
    assert counts[0].max() == 100


@pytest.mark.parametrize(
    ("partitioner", "clients"),
    [
        (DirichletClass(0.3), 500),
        (DirichletClass(0.3, min_size=100), 500),
        (DirichletClass(0.2, balance=True, min_size=10), 200),
        (DirichletClass(0.01, balance=True, min_size=10), 1000),
    ],
    ids=str,
)
def test_many_clients_end_with_enough_rows_each(partitioner, clients, mnist, sizes_of):
    made = partition(partitioner, mnist, clients, 0)
    assert min(sizes_of(made)) >= partitioner.min_size
    assert sum(sizes_of(made)) == 60_000


def test_rows_move_from_the_largest_clients_and_are_counted(balanced, sizes_of):
    drawn = partition(DirichletClass(0.05, max_retries=0, allow_empty=True), balanced, 20, 0)
    filled = partition(DirichletClass(0.05, max_retries=0, min_size=20), balanced, 20, 0)
    before, after = np.array(sizes_of(drawn)), np.array(sizes_of(filled))
    assert drawn.recipe["moved"] == 0
    assert filled.recipe["moved"] == np.maximum(20 - before, 0).sum() > 0
    assert (after[before < 20] == 20).all()
    # Only the largest gave, and none of them fell below one that gave nothing (by more than a row).
    gave = after < before
    assert after[gave].min() + 1 >= before[~gave].max()


def test_balance_closes_clients_that_hold_their_share(mnist, sizes_of):
    spread = [
        max(sizes_of(partition(DirichletClass(0.1, balance=balance), mnist, 10, seed)))
        for balance in (False, True)
        for seed in range(20)
    ]
    # A balanced client can pass its equal share by one class at most.
    assert max(spread[20:]) < 6000 + np.bincount(mnist).max()
    assert np.mean(spread[20:]) < np.mean(spread[:20])


def test_dirichlet_client_sizes_are_equal_and_mixes_differ(mnist, sizes_of):
    made = partition(DirichletClient(0.1), mnist, 70, 0)
    assert set(sizes_of(made)) == {60_000 // 70}
    counts = class_counts(mnist, made.shards, 10)
    assert np.median(counts.max(axis=1)) > 0.5 * 60_000 // 70
