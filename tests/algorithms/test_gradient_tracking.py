"""Gradient tracking: what Nedic, Olshevsky, Shi (SIAM J. Optim. 2017) print, and that it is exact."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Inbox
from consilience.algorithms.dpsgd import DPSGD
from consilience.algorithms.gradient_tracking import LAST, TRACKER, GradientTracking
from consilience.client import Gradient
from consilience.engine.network import Network
from consilience.errors import UserError
from consilience.graphs.base import metropolis
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.testing import PROPERTIES, check_property, prepare

ORDERS = ("adapt_then_combine", "combine_then_adapt")
SIZES = (20, 12, 25, 16, 18)
"""Enough samples of overlapping classes that the best logistic regression is finite."""


@pytest.fixture
def graph(scene):
    def make(topology=None, **options):
        where = scene(sizes=SIZES, module="logistic", epochs=1, batch_size=7)
        return replace(where, topology=topology or Line(), init="different", **options)

    return make


def loss_of(scene, own, rows):
    inputs, targets = scene.dataset.inputs[rows].to(scene.dtype), scene.dataset.targets[rows]
    return F.cross_entropy(F.linear(inputs, own["weight"], own["bias"]), targets)


def gradients(scene, params):
    """Every node's full gradient at its own model."""
    own = [tree.index({"params": params}, node)["params"] for node in range(len(SIZES))]
    grad = torch.func.grad(loss_of, argnums=1)
    found = [grad(scene, one, rows) for one, rows in zip(own, scene.partitions[0].shards, strict=True)]
    return tree.stack([{"params": one} for one in found])["params"]


def mixed(simulation, params):
    weights = torch.from_numpy(metropolis(simulation.world.replicas[0].adjacency))
    return {name: torch.einsum("ij,j...->i...", weights, value) for name, value in params.items()}


def params_of(simulation):
    return tree.index(simulation.hub, 0)["params"]


@pytest.mark.parametrize("topology", [Ring(), Line(), Complete(), ErdosRenyi(p=0.5)])
@pytest.mark.parametrize("order", ORDERS)
def test_rounds_are_those_of_the_paper(graph, play, topology, order):
    where = graph(topology)
    simulation = play(where, GradientTracking(0.2, order), 0)
    x = params_of(simulation)
    last = gradients(where, x)
    y = last
    for _ in range(4):
        simulation.step(evaluate=False)
        if order == "adapt_then_combine":
            x = mixed(simulation, tree.axpy(-0.2, y, x))
        else:
            x = tree.axpy(-0.2, y, mixed(simulation, x))
        now = gradients(where, x)
        y, last = tree.add(mixed(simulation, y), tree.sub(now, last)), now
        assert_close(params_of(simulation), x, rtol=1e-12, atol=1e-14)


def test_what_is_tracked_adds_up_to_the_gradients(graph, play):
    simulation = play(graph(), GradientTracking(0.2), 0)
    for _ in range(4):
        simulation.step(evaluate=False)
        last = simulation.store.load(range(len(SIZES)))[LAST]
        for name, value in simulation.hub[TRACKER].items():
            assert_close(value[0].sum(0), last[name].sum(0), rtol=1e-12, atol=1e-14)


def slope(scene, simulation):
    """How far from a minimiser of the mean of all nodes' losses every node is, and how far they are apart."""
    params = params_of(simulation)
    flat = torch.cat([value.flatten(1) for value in params.values()], 1)
    worst = torch.zeros((), dtype=torch.float64)
    for node in range(len(SIZES)):
        same = {name: value[node].expand_as(value) for name, value in params.items()}
        mean = {name: value.mean(0) for name, value in gradients(scene, same).items()}
        worst = worst.maximum(tree.sq_norm(mean).sqrt())
    return float(worst), float((flat - flat.mean(0)).norm())


@pytest.mark.parametrize("order", ORDERS)
def test_with_a_constant_step_it_finds_the_common_minimiser_at_a_linear_rate(graph, play, order):
    where = graph(Ring())
    simulation = play(where, GradientTracking(0.3, order), 60)
    found = [slope(where, simulation)]
    for _ in range(2):
        for _ in range(90):
            simulation.step(evaluate=False)
        found.append(slope(where, simulation))
    for before, after in itertools.pairwise(found):
        assert after[0] < 0.1 * before[0]
        assert after[1] < 0.1 * before[1]
    assert found[-1][0] < 3e-5


@pytest.mark.parametrize("order", ORDERS)
def test_with_a_constant_step_dpsgd_stays_at_a_distance(graph, play, order):
    where = replace(graph(Ring()), work=replace(graph().work, batch_size=100))
    simulation = play(where, DPSGD(order), 150, SGD(0.3))
    before = slope(where, simulation)
    for _ in range(50):
        simulation.step(evaluate=False)
    after = slope(where, simulation)
    assert after[0] > 0.99 * before[0] > 0.05
    assert after[1] > 0.99 * before[1] > 0.2


@dataclass(frozen=True)
class Quadratic:
    """A client whose loss is `(x - a)' H (x - a) / 2`."""

    hessian: torch.Tensor
    centre: torch.Tensor

    def grad(self, model):
        return Gradient({"v": self.hessian @ (model["params"]["v"] - self.centre)}, {})


@pytest.mark.parametrize("order", ORDERS)
def test_on_quadratics_every_node_ends_at_the_closed_form(order):
    random = torch.Generator().manual_seed(0)
    roots, centres, starts = (
        torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((6, 3, 3), (6, 3), (6, 3))
    )
    hessians = roots @ roots.mT / 3 + 0.5 * torch.eye(3, dtype=torch.float64)
    best = torch.linalg.solve(hessians.sum(0), torch.einsum("kij,kj->i", hessians, centres))
    clients = [Quadratic(*one) for one in zip(hessians, centres, strict=True)]
    weights = torch.from_numpy(metropolis(Line().adjacency(6, None)))
    method = GradientTracking(0.05, order)
    initial = [{"params": {"v": start}, "buffers": {}} for start in starts]
    hubs, memories = [method.init_hub(m) for m in initial], [method.init_memory(m) for m in initial]
    errors = []
    for _ in range(5):
        for _ in range(100):
            work = [
                method.local(client, method.broadcast(hub), memory)
                for client, hub, memory in zip(clients, hubs, memories, strict=True)
            ]
            uploads, memories = [up for up, _ in work], [memory for _, memory in work]
            heard = tree.stack(uploads)
            shares = [Inbox(heard, w, w, own, 6, w) for w, own in zip(weights, uploads, strict=True)]
            hubs = [method.combine(hub, inbox) for hub, inbox in zip(hubs, shares, strict=True)]
        errors.append(max(float((hub["params"]["v"] - best).norm()) for hub in hubs))
    assert errors[-1] < 1e-6
    assert all(after < 0.1 * before for before, after in itertools.pairwise(errors))


@pytest.mark.parametrize("order", ORDERS)
def test_alone_it_is_gradient_descent(scene, play, centralised, order):
    alone = replace(scene(sizes=(11,), epochs=1, batch_size=100), topology=Complete())
    found = play(alone, GradientTracking(0.2, order), 4, SGD(0.7))
    node = {name: value[0] for name, value in params_of(found).items()}
    assert_close(node, centralised(alone, 4, SGD(0.2)), rtol=1e-10, atol=1e-12)


def test_how_a_pass_is_cut_into_batches_does_not_matter(graph, play):
    pieces = graph()
    whole = replace(pieces, work=replace(pieces.work, batch_size=100))
    found, expected = (play(where, GradientTracking(), 3).hub for where in (pieces, whole))
    assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_two_models_worth_travel_over_every_directed_edge(graph, play):
    record = play(graph(Line()), GradientTracking(), 0).step()[0]
    assert record.bytes_up["params"] == record.bytes_up[TRACKER] == 8 * 8 * (6 * 3 + 3)  # 4 edges, both ways
    assert record.bytes_up == record.bytes_down
    assert record.samples == 0  # no optimiser steps


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
def test_the_printed_order_keeps_the_contract(one):
    check_property(one, prepare(GradientTracking(order="combine_then_adapt")))


def test_a_star_is_refused(scene, play):
    with pytest.raises(
        UserError, match="gradient-tracking: gradient tracking is defined on a graph of peers"
    ):
        play(scene(), GradientTracking())


@pytest.mark.parametrize(
    "options", [{"participation": 3}, {"failure_rate": 0.1}, {"network": Network(loss=0.1)}], ids=str
)
def test_missing_messages_are_refused(graph, play, options):
    with pytest.raises(UserError, match="the tracked gradients must add up"):
        play(graph(**options), GradientTracking())


def test_a_graph_that_is_drawn_anew_is_fine(graph, play):
    changing = graph(ErdosRenyi(p=0.5), network=Network(redraw_every=1))
    simulation = play(changing, GradientTracking(0.3), 120)
    assert slope(changing, simulation)[0] < 1e-3


def test_a_negative_step_is_refused():
    with pytest.raises(UserError, match=r"lr must be at least 0, not -0\.1"):
        GradientTracking(-0.1)
