"""Partitions: every row at most once, repeatable, on record, and refusals instead of loops."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

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
def test_every_row_is_dealt_once_or_counted_as_dropped(
    partitioner, dropped, labels, clients, seed, holdout, rows_of, sizes_of
):
    made = partition(with_holdout(partitioner, holdout), labels, clients, seed)
    rows = rows_of(made)
    assert len(made.shards) == len(made.holdouts) == clients
    assert min(sizes_of(made)) >= 1
    assert len(np.unique(rows)) == len(rows) == len(labels) - made.dropped
    assert made.dropped == dropped(len(labels), clients)
    assert rows.min() >= 0
    assert rows.max() < len(labels)


@pytest.mark.parametrize("kind", PARTITIONERS.values(), ids=PARTITIONERS)
def test_same_seed_same_rows_other_seed_other_rows(kind, balanced, writers):
    def digest(seed: int) -> object:
        return partition(kind(holdout=0.1), balanced, 10, seed, groups=writers).manifest()["sha256"]

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


@pytest.mark.parametrize("kind", PARTITIONERS.values(), ids=PARTITIONERS)
def test_options_come_from_plain_values_and_go_to_json(kind, balanced, writers):
    made = partition(kind(), balanced, 5, 0, groups=writers)
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
        "by_client",
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


@pytest.mark.parametrize(
    ("rows", "holdout", "kept"),
    [(10, 0.0, 10), (10, 0.1, 9), (10, 0.2, 8), (3, 0.1, 3), (1, 0.5, 1), (2, 0.99, 1)],
)
def test_holdout_leaves_a_row_to_train_on(rows, holdout, kept, sizes_of):
    made = partition(Iid(holdout=holdout), np.zeros(4 * rows, dtype=np.int64), 4, 0)
    assert sizes_of(made) == [kept] * 4
    assert [len(back) for back in made.holdouts] == [rows - kept] * 4


def test_holdout_does_not_change_who_holds_what(mnist):
    plain, held = (partition(DirichletClass(holdout=holdout), mnist, 10, 0) for holdout in (0.0, 0.2))
    for whole, kept, back in zip(plain.shards, held.shards, held.holdouts, strict=True):
        assert set(whole) == {*kept, *back}
        assert len(whole) == len(kept) + len(back)


@pytest.mark.parametrize(
    "partitioner", [Iid(allow_empty=True), DirichletClass(0.01, allow_empty=True)], ids=str
)
def test_empty_clients_when_asked_for(partitioner, sizes_of):
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


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_the_key_is_refused(seed, balanced):
    with pytest.raises(UserError, match=f"not {seed}"):
        partition(Iid(), balanced, 10, seed)


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
