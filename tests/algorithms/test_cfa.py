"""CFA: section 8.2 of the algorithm reference; numbers are those of its tests (the last is CFA-GE's)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.cfa import CFA
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.local import Local
from consilience.config.entries import read_method
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.graphs.complete import Complete
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.objectives.proximal import Proximal
from consilience.rules.consensus import Consensus

STILL = SGD(0.0)
"""Local training that changes nothing."""
SIZES = (7, 3, 10, 1, 5)
RULES = [Consensus(), Consensus(0.3), Consensus("inverse_degree"), Consensus(mode="sequential")]


@pytest.fixture
def models():
    """What five nodes send."""
    random = torch.Generator().manual_seed(0)
    return {"params": {"w": torch.randn(5, 4, 3, generator=random, dtype=torch.float64)}}


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["joint", "sequential"])
def test_a_step_of_zero_is_local_training_bit_for_bit(scene, play, dtype, mode):
    where = replace(scene(dtype=dtype), topology=Ring(), init="different")
    found, alone = play(where, CFA(0.0, mode)), play(where, Local())
    rows = alone.evaluated()
    assert_close(found.models(rows), alone.models(rows), rtol=0, atol=0)


# 2
@pytest.mark.parametrize("topology", [Ring(), Line(), Complete()])
def test_a_whole_step_is_the_neighbours_mean_without_the_node(scene, play, topology):
    simulation = play(replace(scene(), topology=topology, init="different"), CFA(), 0, STILL)
    before = simulation.hub["params"]["0.weight"][0].clone()
    simulation.step(evaluate=False)
    links = torch.from_numpy(simulation.world.replicas[0].adjacency).double()
    shares = links * torch.tensor(SIZES)
    expected = torch.einsum("ij,j...->i...", shares / shares.sum(1, keepdim=True), before)
    assert_close(simulation.hub["params"]["0.weight"][0], expected)


# 3
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_equal_models_stay_as_they_are(scene, play, rule):
    where = replace(scene(dtype=torch.float32), topology=Ring(), init="common")
    before, after = (play(where, CFA(rule.epsilon, rule.mode), rounds, STILL).hub for rounds in (0, 3))
    assert_close(before, after, rtol=0, atol=0)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_joint_step_is_the_printed_one(models, inbox, epsilon):
    heard = inbox(models, (7, 3, 10, 0, 5), node=2)  # the fourth was not heard
    w = models["params"]["w"]
    expected = w[2] + epsilon * sum(n / 15 * (w[j] - w[2]) for j, n in ((0, 7), (1, 3), (4, 5)))
    assert_close(Consensus(epsilon).merge({"w": w[0]}, heard)["w"], expected)


@pytest.mark.parametrize("epsilon", [0.4, 1.0, "inverse_degree"])
def test_neighbours_one_after_the_other_in_ascending_order(models, inbox, epsilon):
    heard = inbox(models, (7, 3, 10, 0, 5), node=2)
    w = models["params"]["w"]
    psi = w[2]
    for j, size in ((0, 7), (1, 3), (4, 5)):
        share = size / (size + 2 * 10)
        psi = psi + (1 / 3 if epsilon == "inverse_degree" else epsilon) * share * (w[j] - psi)
    assert_close(Consensus(epsilon, "sequential").merge({"w": w[0]}, heard)["w"], psi)


def test_the_inverse_degree_counts_the_neighbours_that_were_heard(models, inbox):
    heard = inbox(models, (7, 3, 10, 0, 5), node=2)
    steps = [
        Consensus(e).merge({"w": models["params"]["w"][0]}, heard)["w"] for e in ("inverse_degree", 1 / 3)
    ]
    assert_close(*steps)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_shares_are_a_convex_combination(models, inbox, rule):
    for sizes in ((7, 3, 10, 0, 5), (1, 0, 10, 0, 0), (0, 0, 10, 0, 0)):
        shares = rule.shares(inbox(models, sizes, node=2))
        assert (shares >= 0).all()
        assert_close(shares.sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_who_hears_nobody_keeps_its_model(models, inbox, rule):
    alone = inbox(models, (0, 0, 10, 0, 0), node=2)
    w = models["params"]["w"]
    assert torch.equal(rule.merge({"w": w[0]}, alone)["w"], w[2])


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_a_node_without_data_moves_from_where_it_is(scene, play, epsilon):
    where = replace(scene(sizes=(7, 0, 10)), topology=Line(), init="different")
    simulation = play(where, CFA(epsilon), 0, STILL)
    models = simulation.hub["params"]["0.bias"][0].clone()
    simulation.step(evaluate=False)
    mean = (7 * models[0] + 10 * models[2]) / 17
    found = simulation.hub["params"]["0.bias"][0, 1]
    assert_close(found, (1 - epsilon) * models[1] + epsilon * mean)


def test_buffers_are_averaged_whatever_the_step(scene, play):
    """Running statistics by data over the closed neighbourhood, counters by their maximum."""
    where = replace(scene(module="normalised", sizes=(7, 9, 10)), topology=Ring(), init="different")
    found, expected = (tree.index(play(where, m, 1).hub, 0)["buffers"] for m in (CFA(0.1), FedAvg()))
    assert_close(found, expected, rtol=0, atol=0)
    assert any(not value.is_floating_point() for value in found.values())


def test_any_objective_goes_with_it(scene, play):
    where = replace(scene(), topology=Ring())
    method = Composed(Proximal(mu=0.0), Consensus(0.5))
    assert_close(play(where, method).hub, play(where, CFA(0.5)).hub, rtol=0, atol=0)


def test_a_sweep_gives_what_each_step_gives_alone(scene, play):
    where = replace(scene(), topology=Ring(), init="different")
    swept = simulate(where, [(CFA(epsilon), SGD(0.1)) for epsilon in (0.0, 0.5)])
    for _ in range(2):
        swept.step(evaluate=False)
    for number, epsilon in enumerate((0.0, 0.5)):
        alone = play(where, CFA(epsilon), 2)
        assert_close(tree.index(swept.hub, number), tree.index(alone.hub, 0), rtol=1e-12, atol=1e-14)


def test_bytes_are_one_model_per_neighbour(scene, play):
    where = replace(scene(), topology=Line())
    records = [play(where, method, 0).step()[0] for method in (CFA(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_up["params"] == 8 * 8 * (6 * 8 + 8 + 8 * 3 + 3)  # 4 edges, both ways


def test_options_are_read_from_a_configuration():
    assert read_method({"name": "cfa", "epsilon": "inverse_degree"}).sweep.variants == (
        CFA("inverse_degree"),
    )
    swept = read_method({"name": "cfa", "epsilon": [0.5, 1], "mode": "sequential"}).sweep.variants
    assert swept == (CFA(0.5, "sequential"), CFA(1.0, "sequential"))


def test_a_star_is_refused(scene, play):
    with pytest.raises(UserError, match="cfa: consensus is defined on a graph of peers: set topology"):
        play(replace(scene(), topology=Star()), CFA())


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, float("nan")])
def test_steps_that_are_not_stable_are_refused(epsilon):
    with pytest.raises(UserError, match=f"epsilon must be from 0 to 1, not {epsilon}"):
        CFA(epsilon)
