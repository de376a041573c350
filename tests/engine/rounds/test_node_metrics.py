"""What is said about every node of a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from consilience.engine.rounds.listening import Heard
from consilience.engine.rounds.node_metrics import consensus, contributors, followed
from consilience.learning.coordinate import Coordinate


def heard(importance: torch.Tensor | None, who: list[list[int]], sizes: list[float]) -> Heard:
    """One replica of nodes with two parameters each, of which the first may have importance."""
    nodes = len(sizes)
    messages = {"params": {"a": torch.zeros(1, nodes, 1), "b": torch.zeros(1, nodes, 1)}}
    if importance is not None:
        messages["importance"] = {"a": importance.reshape(1, nodes, 1)}
    mask = np.array([who], dtype=np.bool_)
    weights = mask * np.array(sizes)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return Heard(messages, mask, weights, weights, weights, [0], [0], None)


def test_distances_from_the_mean_model():
    params = {"w": torch.tensor([[[0.0], [2.0], [4.0]]]), "b": torch.tensor([[[1.0], [1.0], [1.0]]])}
    np.testing.assert_allclose(consensus(params).numpy(), [[2, 0, 2]])


@pytest.mark.parametrize(
    ("importance", "expected"),
    [
        (None, [3.0, 2.0, 1.0]),  # equal shares of the data
        (torch.ones(3), [3.0, 2.0, 1.0]),
        (torch.tensor([0.0, 5.0, 0.0]), [(1 + 3) / 2, (1 + 2) / 2, (1 + 1) / 2]),  # nobody: by data
        (torch.zeros(3), [3.0, 2.0, 1.0]),
    ],
)
def test_the_effective_number_of_contributors(importance, expected):
    found = contributors(heard(importance, [[1, 1, 1], [1, 1, 0], [0, 0, 1]], [10, 10, 10]))
    np.testing.assert_allclose(found.numpy(), [expected])


def test_a_large_neighbour_counts_for_more_and_silence_for_one():
    found = contributors(heard(None, [[1, 1], [0, 0]], [30, 10]))
    np.testing.assert_allclose(found.numpy(), [[1 / (0.75**2 + 0.25**2), 1.0]])


def test_curvature_and_weight_of_one_parameter():
    """The second hears the first two, the third only itself, the last nobody, not even itself."""
    who = [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    messages = heard(torch.tensor([1.0, 3.0, 0.0, 9.0]), who, [10, 10, 20, 10])
    found = followed(messages, Coordinate("a", (0,)))
    np.testing.assert_allclose(found["curvature"].numpy(), [[1, 3, 0, np.nan]])
    np.testing.assert_allclose(found["share"].numpy(), [[1 / 4, 3 / 4, 1.0, np.nan]])


def test_without_curvature_the_weight_is_the_share_of_the_data():
    found = followed(heard(torch.zeros(2), [[1, 1], [0, 1]], [30, 10]), Coordinate("a", (0,)))
    np.testing.assert_allclose(found["share"].numpy(), [[0.75, 1.0]])


def test_a_parameter_that_carries_no_curvature_is_not_followed():
    assert followed(heard(torch.ones(2), [[1, 1], [1, 1]], [1, 1]), Coordinate("b", (0,))) == {}
