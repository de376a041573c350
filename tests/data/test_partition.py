"""Partitioners: every row at most once, the counts the papers give, and refusals instead of loops."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from consilience.data.heterogeneity import class_counts
from consilience.data.partition import Partition, partition
from consilience.data.partitioners import (
    PARTITIONERS,
    ByWriter,
    DirichletClass,
    DirichletClient,
    HomogeneousBlocks,
    Iid,
    Partitioner,
    Shards,
    ShardsTwoClasses,
    Sizes,
)
from consilience.errors import UserError

MNIST_CLASS_SIZES = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST = np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST_CLASS_SIZES))
BALANCED = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
WRITERS = np.random.default_rng(2).permutation(np.repeat(np.arange(40), 25))

# The kinds, and how many of n rows each drops with k clients (classes of any size, also absent ones).
DROPPED = [
    (Iid(), lambda n, k: 0),
    (Iid(stratified=True), lambda n, k: 0),
    (DirichletClass(0.3), lambda n, k: 0),
    (DirichletClass(0.3, counts="multinomial"), lambda n, k: 0),
    (DirichletClass(0.3, balance=True, min_size=3), lambda n, k: 0),
    (DirichletClass(1e-3, balance=True, counts="multinomial"), lambda n, k: 0),
    (DirichletClient(0.3), lambda n, k: n % k),
    (Shards(), lambda n, k: n % (2 * k)),
    (Shards(shards_per_client=3), lambda n, k: n % (3 * k)),
    (Sizes(), lambda n, k: 0),
]


def rows_of(made: Partition) -> np.ndarray:
    return np.concatenate([*made.shards, *made.holdouts])


def sizes_of(made: Partition) -> list[int]:
    return [len(rows) for rows in made.shards]


def majority(labels: np.ndarray) -> int:
    return int(np.bincount(labels).argmax())


def shard_classes(labels: np.ndarray, shards: int) -> list[int]:
    size = len(labels) // shards
    return [majority(shard) for shard in np.sort(labels)[: shards * size].reshape(shards, size)]


def with_holdout(partitioner: Partitioner, holdout: float) -> Partitioner:
    return dataclasses.replace(partitioner, holdout=holdout)


@pytest.mark.parametrize(
    ("partitioner", "dropped"),
    DROPPED,
    ids=[f"{partitioner.name}-{i}" for i, (partitioner, _) in enumerate(DROPPED)],
)
@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, 4, 7]), min_size=40, max_size=150).map(np.array),
    clients=st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
    holdout=st.sampled_from([0.0, 0.2]),
)
def test_every_row_is_dealt_once_or_counted_as_dropped(partitioner, dropped, labels, clients, seed, holdout):
    made = partition(with_holdout(partitioner, holdout), labels, clients, seed)
    rows = rows_of(made)
    assert len(made.shards) == len(made.holdouts) == clients
    assert min(sizes_of(made)) >= 1
    assert len(np.unique(rows)) == len(rows) == len(labels) - made.dropped
    assert made.dropped == dropped(len(labels), clients)
    assert rows.min() >= 0
    assert rows.max() < len(labels)


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


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(20, 60), min_size=2, max_size=7),
    clients=st.integers(1, 12),
    seed=st.integers(0, 1000),
    pure=st.booleans(),
)
def test_two_class_shards_hold_or_are_refused(sizes, clients, seed, pure):
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


@pytest.mark.parametrize("kind", PARTITIONERS.values(), ids=PARTITIONERS)
def test_same_seed_same_rows_other_seed_other_rows(kind):
    def digest(seed: int) -> object:
        return partition(kind(holdout=0.1), BALANCED, 10, seed, groups=WRITERS).manifest()["sha256"]

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


@pytest.mark.parametrize("kind", PARTITIONERS.values(), ids=PARTITIONERS)
def test_options_come_from_plain_values_and_go_to_json(kind):
    made = partition(kind(), BALANCED, 5, 0, groups=WRITERS)
    manifest = json.loads(json.dumps(made.manifest()))
    assert manifest == made.manifest()
    assert manifest["recipe"] | {"options": None} == {
        "name": kind.name,
        "options": None,
        "seed": 0,
        "clients": 5,
        "moved": 0,
    }
    assert TypeAdapter(kind).validate_python(manifest["recipe"]["options"]) == kind()
    assert kind.__doc__.splitlines()[0].endswith(".")


def test_registry_names():
    assert sorted(PARTITIONERS) == [
        "by_writer",
        "dirichlet_class",
        "dirichlet_client",
        "homogeneous_blocks",
        "iid",
        "shards",
        "shards_two_classes",
        "sizes",
    ]


def test_digest_sees_a_row_that_changes_hands():
    def digest(*shards: list[int]) -> object:
        rows = tuple(np.array(shard, dtype=np.int64) for shard in shards)
        return Partition(rows, (rows[0][:0],) * len(rows), {}, 0).manifest()["sha256"]

    assert digest([0, 1], [2]) != digest([0], [1, 2])


@pytest.mark.parametrize("stratified", [False, True])
def test_iid_sizes_differ_by_at_most_one(stratified):
    made = partition(Iid(stratified=stratified), MNIST, 7, 0)
    assert max(sizes_of(made)) - min(sizes_of(made)) <= 1


def test_stratified_class_counts_differ_by_at_most_one():
    counts = class_counts(MNIST, partition(Iid(stratified=True), MNIST, 7, 0).shards, 10)
    assert np.ptp(counts, axis=0).max() <= 1


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
def test_dirichlet_shares_have_the_right_moments(alpha):
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
def test_tiny_alpha_gives_one_client_each_class(alpha, balance, counts):
    made = partition(DirichletClass(alpha, counts, balance), BALANCED, 50, 0)
    assert sum(sizes_of(made)) == len(BALANCED)
    assert min(sizes_of(made)) >= 1
    assert made.recipe["moved"] > 0


def test_tiny_alpha_for_each_client():
    counts = class_counts(BALANCED, partition(DirichletClient(1e-12), BALANCED, 10, 0).shards, 10)
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
def test_many_clients_end_with_enough_rows_each(partitioner, clients):
    made = partition(partitioner, MNIST, clients, 0)
    assert min(sizes_of(made)) >= partitioner.min_size
    assert sum(sizes_of(made)) == 60_000


def test_rows_move_from_the_largest_clients_and_are_counted():
    drawn = partition(DirichletClass(0.05, max_retries=0, allow_empty=True), BALANCED, 20, 0)
    filled = partition(DirichletClass(0.05, max_retries=0, min_size=20), BALANCED, 20, 0)
    before, after = np.array(sizes_of(drawn)), np.array(sizes_of(filled))
    assert drawn.recipe["moved"] == 0
    assert filled.recipe["moved"] == np.maximum(20 - before, 0).sum() > 0
    assert (after[before < 20] == 20).all()
    # Only the largest gave, and none of them fell below one that gave nothing (by more than a row).
    gave = after < before
    assert after[gave].min() + 1 >= before[~gave].max()


def test_balance_closes_clients_that_hold_their_share():
    spread = [
        max(sizes_of(partition(DirichletClass(0.1, balance=balance), MNIST, 10, seed)))
        for balance in (False, True)
        for seed in range(20)
    ]
    # A balanced client can pass its equal share by one class at most.
    assert max(spread[20:]) < 6000 + max(MNIST_CLASS_SIZES)
    assert np.mean(spread[20:]) < np.mean(spread[:20])


def test_dirichlet_client_sizes_are_equal_and_mixes_differ():
    made = partition(DirichletClient(0.1), MNIST, 70, 0)
    assert set(sizes_of(made)) == {60_000 // 70}
    counts = class_counts(MNIST, made.shards, 10)
    assert np.median(counts.max(axis=1)) > 0.5 * 60_000 // 70


@pytest.mark.parametrize(
    ("labels", "clients", "shard"),
    [(MNIST, 100, 300), (np.repeat(np.arange(26), 4800), 200, 312)],
    ids=["fedavg-mnist", "fagh-letters"],
)
def test_shards_of_the_papers(labels, clients, shard):
    made = partition(Shards(), labels, clients, 0)
    assert set(sizes_of(made)) == {2 * shard}
    assert made.dropped == 0
    counts = class_counts(labels, made.shards, int(labels.max()) + 1)
    assert (counts > 0).sum(axis=1).max() <= 4


@pytest.mark.parametrize("labels", [BALANCED, MNIST[:2000]], ids=["equal", "unequal"])
@pytest.mark.parametrize("pure", [False, True])
def test_two_classes_for_a_thousand_seeds(labels, pure):
    counted_as = labels.copy()
    if not pure:
        by_label = np.argsort(labels, kind="stable")
        counted_as[by_label] = np.repeat(shard_classes(labels, 20), len(labels) // 20)
    for seed in range(1000):
        made = partition(ShardsTwoClasses(pure=pure), labels, 10, seed)
        assert all(len(set(counted_as[rows])) == 2 for rows in made.shards)
        assert made.dropped == 0


def test_pure_shards_halve_each_mnist_class():
    counts = class_counts(MNIST, partition(ShardsTwoClasses(pure=True), MNIST, 10, 0).shards, 10)
    halves = [sorted(column[column > 0]) for column in counts.T]
    assert halves == [[size // 2, size - size // 2] for size in MNIST_CLASS_SIZES]


@pytest.mark.parametrize("clients", [1, 50, 3000])
def test_two_classes_that_leave_one_pairing_only(clients):
    labels = np.repeat([0, 1], clients)
    made = partition(ShardsTwoClasses(), labels, clients, 0)
    assert all(set(labels[rows]) == {0, 1} for rows in made.shards)


def test_homogeneous_blocks_of_fedcurv():
    made = partition(HomogeneousBlocks(), MNIST, 96, 0)
    assert set(sizes_of(made)) == {2 * 306}
    assert made.dropped == 1248
    assert all(len(set(MNIST[block])) == 1 for rows in made.shards for block in np.split(rows, 2))


def test_sizes_of_swa():
    made = partition(Sizes((2 / 3, 1 / 6, 1 / 6), server=0.01, holdout=0.1), MNIST, 3, 0)
    assert made.dropped == 600
    assert sizes_of(made) == [35_640, 8_910, 8_910]
    assert [len(rows) for rows in made.holdouts] == [3_960, 990, 990]


def test_sizes_drops_what_no_fraction_claims():
    made = partition(Sizes((0.6, 0.15, 0.15)), BALANCED, 3, 0)
    assert sizes_of(made) == [600, 150, 150]
    assert made.dropped == 100


@pytest.mark.parametrize(
    ("rows", "holdout", "kept"),
    [(10, 0.0, 10), (10, 0.1, 9), (10, 0.2, 8), (3, 0.1, 3), (1, 0.5, 1), (2, 0.99, 1)],
)
def test_holdout_leaves_a_row_to_train_on(rows, holdout, kept):
    made = partition(Iid(holdout=holdout), np.zeros(4 * rows, dtype=np.int64), 4, 0)
    assert sizes_of(made) == [kept] * 4
    assert [len(back) for back in made.holdouts] == [rows - kept] * 4


def test_holdout_does_not_change_who_holds_what():
    plain, held = (partition(DirichletClass(holdout=holdout), MNIST, 10, 0) for holdout in (0.0, 0.2))
    for whole, kept, back in zip(plain.shards, held.shards, held.holdouts, strict=True):
        assert set(whole) == {*kept, *back}
        assert len(whole) == len(kept) + len(back)


def test_writers_keep_their_rows_and_their_test_rows():
    test_groups = np.array([3, 39, 3, 0, 77])
    made = partition(ByWriter(), BALANCED, 40, 0, groups=WRITERS, test_groups=test_groups)
    assert made.dropped == 0
    for writer, (rows, tests) in enumerate(zip(made.shards, made.holdouts, strict=True)):
        assert set(rows) == set(np.flatnonzero(np.equal(WRITERS, writer)))
        assert list(tests) == [1000 + row for row in np.flatnonzero(test_groups == writer)]


def test_fewer_clients_are_whole_writers_chosen_by_the_seed():
    chosen = []
    for seed in range(3):
        made = partition(ByWriter(), BALANCED, 8, seed, groups=WRITERS)
        assert sizes_of(made) == [25] * 8
        assert made.dropped == 800
        assert all(len(rows) == 0 for rows in made.holdouts)
        chosen.append(tuple(WRITERS[rows[0]] for rows in made.shards))
        assert all(len(set(WRITERS[rows])) == 1 for rows in made.shards)
    assert len(set(chosen)) == 3


def test_writers_with_a_holdout_add_it_to_their_test_rows():
    made = partition(ByWriter(holdout=0.2), BALANCED, 40, 0, groups=WRITERS, test_groups=np.arange(40))
    assert sizes_of(made) == [20] * 40
    assert all((rows < 1000).sum() == 5 and rows[-1] == 1000 + k for k, rows in enumerate(made.holdouts))


@pytest.mark.parametrize(
    "partitioner", [Iid(allow_empty=True), DirichletClass(0.01, allow_empty=True)], ids=str
)
def test_empty_clients_when_asked_for(partitioner):
    made = partition(partitioner, np.array([0, 1, 1]), 5, 0)
    assert sum(sizes_of(made)) == 3
    assert min(sizes_of(made)) == 0
    assert made.dropped == 0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Iid, {"holdout": 1.0}, "iid: holdout must be at least 0 and below 1, not 1.0"),
        (DirichletClass, {"alpha": 0.0}, "dirichlet_class: alpha must be a finite number above 0, not 0.0"),
        (DirichletClass, {"alpha": float("nan")}, "dirichlet_class: alpha must be .* not nan"),
        (DirichletClass, {"min_size": 0}, "dirichlet_class: min_size must be at least 1, not 0"),
        (DirichletClass, {"max_retries": -1}, "dirichlet_class: max_retries must be at least 0, not -1"),
        (DirichletClass, {"min_size": 5, "allow_empty": True}, "min_size 5 contradicts allow_empty"),
        (DirichletClient, {"alpha": -1.0}, "dirichlet_client: alpha must be .* not -1.0"),
        (Shards, {"shards_per_client": 0}, "shards: shards_per_client must be at least 1, not 0"),
        (HomogeneousBlocks, {"blocks_per_client": 0}, "blocks_per_client must be at least 1, not 0"),
        (Sizes, {"fractions": (0.6, 0.5)}, "sizes: the fractions sum to 1.1; they may sum to at most 1"),
        (Sizes, {"fractions": (1.5,)}, "sizes: a fraction must be above 0 and at most 1, not 1.5"),
        (Sizes, {"fractions": (0.5, 0.0)}, "sizes: a fraction must be above 0 and at most 1, not 0.0"),
        (Sizes, {"server": 1.0}, "sizes: server must be at least 0 and below 1, not 1.0"),
    ],
)
def test_impossible_options_are_refused(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("partitioner", "labels", "clients", "message"),
    [
        (Iid(), [0] * 5, 6, "iid: 6 clients cannot share 5 training rows; ask for at most 5 clients"),
        (Iid(), [0] * 5, 0, "at least 1 client, not 0"),
        (
            DirichletClass(min_size=3),
            [0] * 8,
            3,
            "3 clients with min_size 3 need 9 training rows, there are 8",
        ),
        (DirichletClient(allow_empty=True), [0, 1], 3, "3 clients cannot have an equal share of 2 rows"),
        (Shards(), [0, 1, 2], 2, "2 clients with 2 shards each need at least 4 training rows, there are 3"),
        (ShardsTwoClasses(), [0, 1, 2], 2, "need at least 4 training rows, there are 3"),
        (ShardsTwoClasses(), [4] * 9, 2, "needs at least 2 classes, the labels have 1"),
        (
            ShardsTwoClasses(),
            [4] * 7 + [5],
            2,
            "class 4 fills 4 of 4 shards, but 2 clients can take one each",
        ),
        (
            ShardsTwoClasses(pure=True),
            [0, 1, 2],
            1,
            "2 pure shards cannot hold 3 classes; ask for at least 2",
        ),
        (ShardsTwoClasses(pure=True), [0] * 5 + [1], 3, "a class of 1 rows cannot be cut into 3 pure shards"),
        (HomogeneousBlocks(), [0, 1, 2], 2, "2 clients with 2 blocks each need at least 4 .* there are 3"),
        (Sizes((0.5, 0.5)), [0] * 9, 3, "sizes: 2 fractions for 3 clients; give one for each"),
        (Sizes((0.98, 0.02)), [0] * 9, 2, "1 of 2 clients hold none of the 9 training rows .* client 1"),
        (ByWriter(), [0] * 9, 3, "does not say who wrote its rows"),
    ],
)
def test_infeasible_requests_are_refused_in_one_line(partitioner, labels, clients, message):
    with pytest.raises(UserError, match=message) as refusal:
        partition(partitioner, np.array(labels), clients, 0)
    assert "\n" not in str(refusal.value)


def test_more_clients_than_writers_or_too_few_groups_are_refused():
    with pytest.raises(UserError, match="41 clients but only 40 writers; ask for at most 40 clients"):
        partition(ByWriter(), BALANCED, 41, 0, groups=WRITERS)
    with pytest.raises(UserError, match="999 groups for 1000 training rows"):
        partition(ByWriter(), BALANCED, 40, 0, groups=WRITERS[1:])


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_the_key_is_refused(seed):
    with pytest.raises(UserError, match=f"not {seed}"):
        partition(Iid(), BALANCED, 10, seed)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([[0, 1]], "made 1 shards for 2 clients"),
        ([[0, 1], [1]], "dealt 1 rows more than once"),
        ([[0], [5]], "dealt a row outside the 5 training rows"),
        ([[0], []], "1 of 2 clients hold none"),
    ],
)
def test_a_wrong_partitioner_of_a_user_is_caught(shards, message):
    class Wrong(Partitioner):
        name = "wrong"

        def split(self, labels, clients, rng, groups):
            return [np.array(rows, dtype=np.int64) for rows in shards]

    with pytest.raises(UserError, match=message):
        partition(Wrong(), np.zeros(5, dtype=np.int64), 2, 0)
