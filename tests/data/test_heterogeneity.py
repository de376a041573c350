"""Heterogeneity measures on shards whose values can be told by hand."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.data.heterogeneity import class_counts, effective_classes, label_distance, quantity_gini
from consilience.errors import UserError

LABELS = np.array([0, 0, 1, 1, 2, 2, 3, 3])


def shards(*rows: list[int]) -> list[np.ndarray]:
    return [np.array(own, dtype=np.int64) for own in rows]


@pytest.mark.parametrize(
    ("held", "distance", "effective"),
    [
        (shards(range(8)), 0.0, 4.0),
        (shards([0, 2, 4, 6], [1, 3, 5, 7]), 0.0, 4.0),
        (shards([0, 1], [2, 3], [4, 5], [6, 7]), 0.75, 1.0),
        (shards([0, 1, 2, 3], [4, 5, 6, 7]), 0.5, 2.0),
        (shards([0, 1, 2, 3], [4, 5, 6, 7], []), 0.5, 2.0),
        # Rows held: 0 0 1 1 of global mix 1/2, 1/2. Client 0 (3 of 4 rows) is 1/6 off, client 1 1/2.
        (shards([0, 1, 2], [3]), 0.75 / 6 + 0.25 / 2, (3 / 4 ** (1 / 3) + 1) / 2),
        (shards([], []), 0.0, 0.0),
    ],
)
def test_label_measures(held, distance, effective):
    assert label_distance(LABELS, held, 4) == pytest.approx(distance)
    assert effective_classes(LABELS, held, 4) == pytest.approx(effective)
    # A class that never occurs changes nothing.
    assert label_distance(LABELS, held, 6) == pytest.approx(distance)
    assert effective_classes(LABELS, held, 6) == pytest.approx(effective)


@pytest.mark.parametrize(
    ("sizes", "gini"),
    [
        ([7], 0.0),
        ([3, 3, 3], 0.0),
        ([1, 3], 0.25),
        ([0, 10], 0.5),
        ([4, 0, 0, 0], 0.75),
        ([0, 0], 0.0),
        ([], 0.0),
    ],
)
def test_quantity_gini(sizes, gini):
    assert quantity_gini(sizes) == pytest.approx(gini)
    assert quantity_gini(np.array(sizes[::-1], dtype=np.int64)) == pytest.approx(gini)


def test_class_counts():
    counts = class_counts(LABELS, shards([0, 1, 7], [], [4]), 5)
    assert counts.tolist() == [[2, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(UserError, match="labels run from 0 to 3, outside the 3 classes"):
        class_counts(LABELS, shards([0]), 3)
