"""A client for each writer."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.data.partition import partition
from consilience.data.partitioners import ByWriter
from consilience.errors import UserError


def test_writers_keep_their_rows_and_their_test_rows(balanced, writers):
    test_groups = np.array([3, 39, 3, 0, 77])
    made = partition(ByWriter(), balanced, 40, 0, groups=writers, test_groups=test_groups)
    assert made.dropped == 0
    for writer, (rows, tests) in enumerate(zip(made.shards, made.holdouts, strict=True)):
        assert set(rows) == set(np.flatnonzero(np.equal(writers, writer)))
        assert list(tests) == [1000 + row for row in np.flatnonzero(test_groups == writer)]


def test_fewer_clients_are_whole_writers_chosen_by_the_seed(balanced, writers, sizes_of):
    chosen = []
    for seed in range(3):
        made = partition(ByWriter(), balanced, 8, seed, groups=writers)
        assert sizes_of(made) == [25] * 8
        assert made.dropped == 800
        assert all(len(rows) == 0 for rows in made.holdouts)
        chosen.append(tuple(writers[rows[0]] for rows in made.shards))
        assert all(len(set(writers[rows])) == 1 for rows in made.shards)
    assert len(set(chosen)) == 3


def test_writers_with_a_holdout_add_it_to_their_test_rows(balanced, writers, sizes_of):
    made = partition(ByWriter(holdout=0.2), balanced, 40, 0, groups=writers, test_groups=np.arange(40))
    assert sizes_of(made) == [20] * 40
    assert all((rows < 1000).sum() == 5 and rows[-1] == 1000 + k for k, rows in enumerate(made.holdouts))


def test_more_clients_than_writers_or_too_few_groups_are_refused(balanced, writers):
    with pytest.raises(UserError, match="41 clients but only 40 writers; ask for at most 40 clients"):
        partition(ByWriter(), balanced, 41, 0, groups=writers)
    with pytest.raises(UserError, match="999 groups for 1000 training rows"):
        partition(ByWriter(), balanced, 40, 0, groups=writers[1:])
