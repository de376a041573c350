"""Clients of chosen sizes."""

from __future__ import annotations

from consilience.data.partition import partition
from consilience.data.partitioners import Sizes


def test_sizes_of_swa(mnist, sizes_of):
    made = partition(Sizes((2 / 3, 1 / 6, 1 / 6), server=0.01, holdout=0.1), mnist, 3, 0)
    assert made.dropped == 600
    assert sizes_of(made) == [35_640, 8_910, 8_910]
    assert [len(rows) for rows in made.holdouts] == [3_960, 990, 990]


def test_sizes_drops_what_no_fraction_claims(balanced, sizes_of):
    made = partition(Sizes((0.6, 0.15, 0.15)), balanced, 3, 0)
    assert sizes_of(made) == [600, 150, 150]
    assert made.dropped == 100
