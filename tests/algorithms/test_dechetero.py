"""DecHetero and DecHomo: section 8.1 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience.algorithms.fedavg import FedAvg
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD

STILL = SGD(0.0)
"""Local training that changes nothing."""


# 1
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_complete_graph_with_a_common_start_is_fedavg(scene, play, weighting):
    star = play(scene(), FedAvg(weighting)).hub["params"]
    nodes = play(replace(scene(), topology=Complete()), FedAvg(weighting)).hub["params"]
    for name, value in star.items():
        assert_close(nodes[name], value[:, None].expand_as(nodes[name]), rtol=1e-12, atol=1e-14)


# 2
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("topology", [Ring(), Line(), ErdosRenyi(p=0.5)])
def test_every_node_takes_a_convex_mean_of_its_closed_neighbourhood(scene, play, weighting, topology):
    sizes = torch.tensor([7, 3, 10, 1, 5], dtype=torch.float64)
    simulation = play(replace(scene(module="logistic"), topology=topology), FedAvg(weighting), 0, STILL)
    # Node i starts with 1 at coordinate i and 0 elsewhere, so that its new model is its row of weights.
    start = torch.zeros(1, 5, 18, dtype=torch.float64)
    start[0, range(5), range(5)] = 1
    simulation.hub["params"]["weight"] = start.reshape(1, 5, 3, 6)
    simulation.step(evaluate=False)
    rows = simulation.hub["params"]["weight"].reshape(5, 18)[:, :5]
    closed = torch.from_numpy(simulation.world.replicas[0].adjacency) | torch.eye(5, dtype=torch.bool)
    expected = closed * (sizes if weighting == "samples" else torch.ones_like(sizes))
    assert_close(rows.sum(1), torch.ones(5, dtype=torch.float64))
    assert_close(rows, expected / expected.sum(1, keepdim=True))


# 3
def test_consensus_is_a_fixed_point_bit_for_bit(scene, play):
    still = replace(scene(dtype=torch.float32), topology=Ring(), init="common")
    before = play(still, FedAvg(), 0, STILL).hub
    assert_close(play(still, FedAvg(), 5, STILL).hub, before, rtol=0, atol=0)


# 4
@pytest.mark.parametrize("topology", [Ring(), Line(), ErdosRenyi(p=0.5)])
def test_without_training_a_connected_graph_converges_to_consensus(scene, play, topology):
    still = replace(
        scene(sizes=(7, 3, 10, 4, 5), epochs=1, batch_size=100), topology=topology, init="different"
    )
    simulation = play(still, FedAvg(), 0, STILL)
    start = simulation.hub["params"]["0.weight"].std(1).max()
    for _ in range(60):
        simulation.step(evaluate=False)
    assert simulation.hub["params"]["0.weight"].std(1).max() < 1e-3 * start


def test_the_start_is_the_only_difference_between_homo_and_hetero(scene, play):
    graph = replace(scene(), topology=Ring())
    homo, hetero = (play(replace(graph, init=i), FedAvg(), 0).hub["params"] for i in ("common", "different"))
    assert homo["0.weight"].std(1).max() == 0 < hetero["0.weight"].std(1).min()


def test_one_model_travels_over_every_directed_edge(scene, play):
    record = play(replace(scene(), topology=Line()), FedAvg(), 0).step()[0]
    assert record.bytes_up == record.bytes_down
    assert record.bytes_up["params"] == 8 * 8 * (6 * 8 + 8 + 8 * 3 + 3)  # 4 edges, both ways


def test_a_node_whose_neighbours_are_silent_keeps_its_own_model(scene, play):
    lonely = replace(scene(), topology=Ring(), init="different", participation=1)
    simulation = play(lonely, FedAvg(), 0)
    before = simulation.hub["params"]["0.weight"].clone()
    record = simulation.step()[0]
    moved = (simulation.hub["params"]["0.weight"] != before).flatten(2).any(-1)[0]
    assert moved.sum() == 1
    assert record.bytes_up == {}


def test_a_node_without_data_follows_its_neighbours(scene, play):
    simulation = play(replace(scene(sizes=(7, 0, 10)), topology=Line(), init="different"), FedAvg(), 0, STILL)
    models = simulation.hub["params"]["0.bias"][0].clone()
    simulation.step(evaluate=False)
    assert_close(simulation.hub["params"]["0.bias"][0, 1], (7 * models[0] + 10 * models[2]) / 17)
