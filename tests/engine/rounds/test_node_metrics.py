"""What is said about every node of a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from consilience.algorithm import Algorithm
from consilience.algorithms.cfa import CFA
from consilience.algorithms.dechw import DecHW, DecHWStar
from consilience.algorithms.dpsgd import DPSGD
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.pfedme import PFedMe
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.network import Network
from consilience.engine.rounds.listening import Heard
from consilience.engine.rounds.node_metrics import consensus, followed
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.star_graph import StarGraph
from consilience.learning.coordinate import Coordinate
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.rules.median import Median
from consilience.transforms.noised import Noised


def heard(importance: torch.Tensor, who: list[list[int]], sizes: list[float]) -> Heard:
    """One replica of nodes with two parameters each, of which the first has importance."""
    nodes = len(sizes)
    messages = {"params": {"a": torch.zeros(1, nodes, 1), "b": torch.zeros(1, nodes, 1)}}
    messages["importance"] = {"a": importance.reshape(1, nodes, 1)}
    mask = np.array([who], dtype=np.bool_)
    samples = mask * np.array(sizes)
    return Heard(messages, mask, samples, np.zeros_like(samples), [0], [0], None)


def test_distances_from_the_mean_model():
    params = {"w": torch.tensor([[[0.0], [2.0], [4.0]]]), "b": torch.tensor([[[1.0], [1.0], [1.0]]])}
    np.testing.assert_allclose(consensus(params).numpy(), [[2, 0, 2]])


def nodes_of(*methods: Algorithm, executor: Literal["batched", "sequential"] = "batched", **changes):
    """What is said, by replica, of four nodes after one round; the first of them knows all others."""
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(30, 4)), random.integers(0, 3, 30)
    shards = tuple(np.split(np.arange(30), (4, 10, 20)))
    where = Scene(
        dataset=Dataset.from_arrays("made", inputs, targets, inputs[:9], targets[:9], classes=3),
        build=lambda: torch.nn.Linear(4, 3),
        partitions={seed: Partition(shards, (shards[0][:0],) * 4, {}, 0) for seed in (0, 1)},
        topology=StarGraph(),
        work=LocalWork(1, None, 4),
        participation=4,
        normalize="none",
        dtype=torch.float64,
        executor=executor,
        init="different",
    )
    simulation = simulate(replace(where, **changes), [(method, SGD(0.1)) for method in methods])
    return [record.nodes for record in simulation.step()]


BY_DATA = [
    1 / sum((n / 30) ** 2 for n in (4, 6, 10, 10)),
    *(1 / ((4 / t) ** 2 + (1 - 4 / t) ** 2) for t in (10, 14, 14)),
]


@pytest.mark.parametrize("executor", ["batched", "sequential"])
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (FedAvg(), BY_DATA),
        (FedAvg("uniform"), [4.0, 2.0, 2.0, 2.0]),
        (DPSGD(), [4.0, *[1 / (0.75**2 + 0.25**2)] * 3]),
        (CFA(0.0), [1.0] * 4),
        (
            Composed(rule=HessianWeighted(include_self=False, weighting="uniform", layers="all")),
            [None, 1.0, 1.0, 1.0],
        ),
        (DecHWStar(until=0), BY_DATA),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_effective_number_of_contributors_is_the_rules(method, expected, executor):
    for nodes in nodes_of(method, executor=executor):
        for found, known in zip(nodes["contributors"], expected, strict=True):
            assert 1 <= found <= 3 if known is None else found == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize("executor", ["batched", "sequential"])
@pytest.mark.parametrize(
    "method",
    [Composed(rule=Median()), DecHW(guard=1.0), Noised(0.1)(FedAvg()), PFedMe()],
    ids=lambda m: m.name,
)
def test_where_weights_are_not_known_there_is_no_such_number(method, executor):
    for nodes in nodes_of(method, executor=executor):
        assert "consensus" in nodes
        assert "contributors" not in nodes


def test_each_of_some_swept_numbers_has_its_own():
    found = [nodes["contributors"] for nodes in nodes_of(*(CFA(epsilon) for epsilon in (0.0, 0.5)))]
    assert len(found) == 4  # two seeds each
    assert sorted(numbers[1] for numbers in found) == pytest.approx([1, 1, 2, 2])


def test_a_node_that_hears_nobody_is_made_of_its_own_model_alone():
    for nodes in nodes_of(FedAvg(), network=Network(loss=1 - 1e-12)):
        assert nodes["contributors"] == [1.0] * 4


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
