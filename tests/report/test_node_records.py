"""What is read from records about nodes: who has any, which nodes are shown, and their numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consilience.errors import UserError
from consilience.report.node_records import (
    Peers,
    chosen_nodes,
    final_scores,
    node_curve,
    node_names,
    pooled_values,
    settings_with_nodes,
)

RUN = {
    1: {"nodes": {"accuracy": [0.25, 0.5]}},
    2: {"nodes": {"accuracy": [None, 0.75]}},
    3: {"nodes": {"accuracy": [math.nan, None]}},
    4: {"nodes": {"curvature": [1.0, 2.0]}},
    5: {},
}


def test_settings_with_nodes(record):
    records = [
        record(setting="star"),
        *(record(setting=name, accuracy=[0.5]) for name in ("ring", "b", "ring")),
    ]
    assert settings_with_nodes(records) == ["ring", "b"]


@pytest.mark.parametrize(
    ("sizes", "nodes", "chosen"),
    [
        ((50, 10, 90, 20, 60, 80, 40, 30, 70), None, [1, 3, 6, 0, 5, 2]),  # least, medium, most
        ((3, 1, 2), None, [1, 2, 0]),
        ((1, 2, 3, 4, 5, 6, 7), None, [0, 1, 2, 3, 5, 6]),
        ((5, 5, 5), [2, 0, 2], [0, 2]),
        ((5, 5, 5), [], []),
    ],
)
def test_chosen_nodes(sizes, nodes, chosen):
    peers = Peers(0, np.ones((len(sizes), len(sizes)), bool), sizes)
    assert chosen_nodes(peers, nodes) == chosen


def test_nodes_that_are_not_there(ring):
    for node in (-1, 3):
        with pytest.raises(UserError, match=f"no node {node}: nodes are numbered from 0 to 2"):
            chosen_nodes(ring(3), [node])


def test_names_of_nodes():
    assert node_names(Peers(0, np.ones((2, 2), bool), (1234, 5)), [1, 0]) == [
        "node 1, 5 rows",
        "node 0, 1,234 rows",
    ]


def test_what_is_not_known_is_skipped():
    assert node_curve(RUN, "accuracy", 0) == {1: 0.25}
    assert node_curve(RUN, "accuracy", 1) == {1: 0.5, 2: 0.75}
    assert node_curve(RUN, "accuracy", 2) == {}
    pooled = pooled_values({0: RUN, 1: {2: {"nodes": {"accuracy": [1.0]}}}}, "accuracy")
    assert {number: values.tolist() for number, values in pooled.items()} == {1: [0.25, 0.5], 2: [0.75, 1.0]}


@pytest.mark.parametrize(
    ("run", "final"), [(RUN, [math.nan] * 2), ({1: RUN[1]}, [0.25, 0.5]), ({}, [math.nan] * 2)]
)
def test_final_scores_are_those_of_the_last_evaluation(run, final):
    np.testing.assert_equal(final_scores(run, 2, "accuracy"), final)
