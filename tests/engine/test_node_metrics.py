"""What is said about every node of a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from consilience.engine.listening import Heard
from consilience.engine.node_metrics import consensus, contributors


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
