"""D-PSGD: what Lian et al. (NeurIPS 2017) print, and the same with the step before the exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.dpsgd import DPSGD
from consilience.algorithms.fedavg import FedAvg
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.base import metropolis
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.testing import PROPERTIES, check_property, prepare

ORDERS = ("adapt_then_combine", "combine_then_adapt")
PRINTED = DPSGD("combine_then_adapt")
STILL = SGD(0.0)
"""Local training that changes nothing."""


@pytest.fixture
def graph(scene):
    """Five nodes with logistic regression, one step on all their data a round."""

    def make(topology, **options):
        where = scene(module="logistic", epochs=1, batch_size=100)
        return replace(where, topology=topology, init="different", **options)

    return make


def gradients(scene, params):
    """Every node's full gradient at its own model."""

    def loss(own, rows):
        inputs, targets = scene.dataset.inputs[rows].to(scene.dtype), scene.dataset.targets[rows]
        return F.cross_entropy(F.linear(inputs, own["weight"], own["bias"]), targets)

    shards = scene.partitions[0].shards
    own = [tree.index({"params": params}, node)["params"] for node in range(len(shards))]
    found = [torch.func.grad(loss)(one, rows) for one, rows in zip(own, shards, strict=True)]
    return tree.stack([{"params": one} for one in found])["params"]


def mixed(simulation, params):
    weights = torch.from_numpy(metropolis(simulation.world.replicas[0].adjacency))
    return {name: torch.einsum("ij,j...->i...", weights, value) for name, value in params.items()}


@pytest.mark.parametrize("topology", [Ring(), Line(), Complete(), ErdosRenyi(p=0.5)])
@pytest.mark.parametrize("order", ORDERS)
def test_rounds_are_those_of_the_paper(graph, play, topology, order):
    where = graph(topology)
    simulation = play(where, DPSGD(order), 0, SGD(0.3))
    x = tree.index(simulation.hub, 0)["params"]
    for _ in range(4):
        simulation.step(evaluate=False)
        step = tree.scale(-0.3, gradients(where, x))
        if order == "adapt_then_combine":
            x = mixed(simulation, tree.add(x, step))
        else:
            x = tree.add(mixed(simulation, x), step)
        assert_close(tree.index(simulation.hub, 0)["params"], x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", ORDERS)
def test_the_mean_of_all_nodes_takes_a_gradient_step(graph, play, order):
    """Weights favour no node, however many neighbours it has: both orders move the mean alike."""
    where = graph(Line())
    simulation = play(where, DPSGD(order), 0, SGD(0.3))
    before = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    expected = tree.axpy(-0.3, gradients(where, before), before)
    for name, value in simulation.hub["params"].items():
        assert_close(value[0].mean(0), expected[name].mean(0), rtol=1e-12, atol=1e-14)


def test_without_training_nodes_find_the_mean_of_their_models(graph, play):
    where = graph(Line())
    before, after = (play(where, DPSGD(), rounds, STILL).hub["params"]["weight"][0] for rounds in (0, 150))
    assert before.std(0).max() > 0.1
    assert_close(after, before.mean(0).expand_as(after), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_the_step_first_it_is_fedavg_with_metropolis_weights(scene, play, dtype):
    where = replace(scene(dtype=dtype), topology=Line(), init="different")
    assert_close(play(where, DPSGD()).hub, play(where, FedAvg("metropolis")).hub, rtol=0, atol=0)


@pytest.mark.parametrize("order", ORDERS)
def test_alone_it_is_local_training(scene, play, centralised, order):
    where = replace(scene(sizes=(11,)), topology=Complete())
    found = tree.index(tree.index(play(where, DPSGD(order)).hub, 0), 0)["params"]
    assert_close(found, centralised(where, 3), rtol=1e-12, atol=1e-14)


def test_the_move_of_a_whole_local_training_takes_the_place_of_a_step(scene, play):
    where = replace(scene(), topology=Ring(), init="different", work=LocalWork(None, 3, 4))
    before, first, printed = (
        tree.index(play(where, method, rounds).hub, 0)["params"]
        for method, rounds in ((DPSGD(), 0), (DPSGD(), 1), (PRINTED, 1))
    )
    simulation = play(where, PRINTED, 0)
    move = tree.sub(printed, mixed(simulation, before))
    assert_close(first, tree.add(mixed(simulation, before), mixed(simulation, move)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("order", ORDERS)
def test_one_model_travels_over_every_directed_edge(graph, play, order):
    record = play(graph(Line()), DPSGD(order), 0).step()[0]
    assert record.bytes_up.keys() <= {"params", "buffers", "header"}
    assert record.bytes_up["params"] == 8 * 8 * (6 * 3 + 3)  # 4 edges, both ways
    assert record.bytes_up == record.bytes_down


@pytest.mark.parametrize("order", ORDERS)
def test_a_node_that_hears_nobody_trains_on(graph, play, order):
    lonely = graph(Ring(), participation=1)
    simulation = play(lonely, DPSGD(order), 0)
    before = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    after = tree.index(simulation.hub, 0)["params"]
    moved = (after["weight"] != before["weight"]).flatten(1).any(1)
    assert moved.sum() == 1
    steps = tree.axpy(-0.1, gradients(lonely, before), before)
    assert_close(after["weight"][moved], steps["weight"][moved], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
def test_the_printed_order_keeps_the_contract(one):
    check_property(one, prepare(PRINTED))


@pytest.mark.parametrize("order", ORDERS)
def test_a_star_is_refused(scene, play, order):
    with pytest.raises(UserError, match="dpsgd: metropolis weights follow from the degrees of a graph"):
        play(scene(), DPSGD(order))
