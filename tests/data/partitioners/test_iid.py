"""Clients that are all alike."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.data.heterogeneity import class_counts
from consilience.data.partition import partition
from consilience.data.partitioners import Iid


@pytest.mark.parametrize("stratified", [False, True])
def test_iid_sizes_differ_by_at_most_one(stratified, mnist, sizes_of):
    made = partition(Iid(stratified=stratified), mnist, 7, 0)
    assert max(sizes_of(made)) - min(sizes_of(made)) <= 1


def test_stratified_class_counts_differ_by_at_most_one(mnist):
    counts = class_counts(mnist, partition(Iid(stratified=True), mnist, 7, 0).shards, 10)
    assert np.ptp(counts, axis=0).max() <= 1
