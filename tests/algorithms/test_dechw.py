"""DecHW and DecHW*: section 4.3 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.dechw import DecHW, DecHWStar
from consilience.algorithms.fedavg import FedAvg
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.graphs.complete import Complete
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted

STILL = SGD(0.0)
"""Local training that changes nothing; curvature is computed all the same."""
SIZES = [1, 2, 5]


@pytest.fixture
def ring(scene):
    return replace(scene(), topology=Ring(), init="different")


@pytest.fixture
def models():
    """The models of a node and its two neighbours, float32."""
    random = torch.Generator().manual_seed(0)
    return {"a.weight": torch.randn(3, 4, 5, generator=random), "a.bias": torch.randn(3, 4, generator=random)}


def importance(simulation):
    return simulation.store.load(range(simulation.world.population))["importance"]


# 1
def test_equal_curvature_gives_the_plain_mean_of_the_neighbourhood(inbox, models):
    equal = {name: value[:1].abs().expand(value.shape) for name, value in models.items()}
    merged = DecHW().rule().merge({}, inbox({"params": models, "importance": equal}, SIZES, node=0))
    assert_close(merged, {name: value.mean(0) for name, value in models.items()})


# 2
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_curvature_it_is_dechetero_bit_for_bit(inbox, models, dtype):
    params = {name: value.to(dtype) for name, value in models.items()}
    heard = inbox({"params": params, "importance": tree.zeros_like(params)}, SIZES, node=0)
    assert_close(DecHW().rule().merge({}, heard), ByData().merge({}, heard), rtol=0, atol=0)


# 3
@pytest.mark.parametrize("accumulate", ["sum", "ema"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_beta_0_the_first_rounds_curvature_stays_forever(ring, play, accumulate, dtype):
    simulation = play(replace(ring, dtype=dtype), DecHW(beta=0.0, accumulate=accumulate), 1)
    first = tree.map_leaves(torch.clone, {"importance": importance(simulation)})
    for _ in range(3):
        simulation.step(evaluate=False)
    assert_close({"importance": importance(simulation)}, first, rtol=0, atol=0)


# 4
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["average", "freeze"])
def test_the_star_with_curvature_in_all_rounds_is_dechw_bit_for_bit(ring, play, mode, dtype):
    where = replace(ring, dtype=dtype)
    assert_close(play(where, DecHWStar(3, mode), 3).hub, play(where, DecHW(), 3).hub, rtol=0, atol=0)


# 4
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["average", "freeze"])
def test_the_star_without_curvature_is_dechetero_bit_for_bit(ring, play, mode, dtype):
    where = replace(ring, dtype=dtype)
    assert_close(play(where, DecHWStar(0, mode), 3).hub, play(where, FedAvg(), 3).hub, rtol=0, atol=0)


def test_the_star_averages_or_keeps_its_last_curvature_afterwards(ring, play):
    average, freeze = (play(ring, DecHWStar(1, mode), 1) for mode in ("average", "freeze"))
    kept = tree.map_leaves(torch.clone, {"importance": importance(freeze)})
    assert_close(average.hub, freeze.hub, rtol=0, atol=0)
    for simulation in (average, freeze):
        simulation.step(evaluate=False)
    assert not torch.equal(average.hub["params"]["0.weight"], freeze.hub["params"]["0.weight"])
    assert_close({"importance": importance(freeze)}, kept, rtol=0, atol=0)


# 5
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_complete_graph_all_nodes_hold_the_same_aggregate(scene, play, dtype):
    where = replace(scene(dtype=dtype), topology=Complete(), init="common")
    # Sums run in float64: only there do rows of one product show their rounding.
    rounding = 1e-12 if dtype == torch.float64 else 0
    for params in play(where, DecHW()).hub.values():
        for value in params.values():
            assert_close(value, value[:, :1].expand_as(value), rtol=0, atol=rounding)


# 5
def test_and_it_is_what_a_server_with_the_same_rule_would_hold(scene, play):
    nodes = play(replace(scene(), topology=Complete()), DecHW()).hub["params"]
    server = play(scene(), Composed(rule=DecHW().rule())).hub["params"]
    assert_close({name: value[:, 0] for name, value in nodes.items()}, server, rtol=1e-12, atol=1e-14)


# 6
@pytest.mark.parametrize("method", [DecHW(), DecHWStar(2), DecHWStar(2, "freeze")])
def test_consensus_is_a_fixed_point_bit_for_bit(scene, play, method):
    where = replace(scene(dtype=torch.float32), topology=Ring(), init="common")
    before = play(where, FedAvg(), 0).hub["params"]
    assert_close(play(where, method, 4, STILL).hub["params"], before, rtol=0, atol=0)


def test_increments_have_unit_norm_over_the_whole_model_and_add_up(ring, play):
    simulation = play(ring, DecHW(), 1)
    norms = []
    for _ in range(3):
        flat = torch.cat([value.flatten(1) for value in importance(simulation).values()], 1)
        norms.append(flat.norm(dim=1))
        simulation.step(evaluate=False)
    assert_close(norms[0], torch.ones(5, dtype=torch.float64))
    assert (norms[1] > norms[0]).all()
    assert (norms[2] <= 3 + 1e-12).all()


def test_a_node_never_sees_a_neighbours_current_round(scene, play):
    """On the line 0-1-2-3, what node 2 starts with reaches node 0 in the second round, not in the first."""
    graph = replace(scene(sizes=(3, 4, 5, 2)), topology=Line(), init="different")
    simulations = [play(graph, DecHW(), 0) for _ in range(2)]
    simulations[1].hub = tree.map_leaves(torch.clone, simulations[1].hub)
    for value in simulations[1].hub["params"].values():
        value[0, 2] += 1
    reached = []
    for _ in range(2):
        for simulation in simulations:
            simulation.step(evaluate=False)
        left, right = (simulation.hub["params"]["0.weight"][0] for simulation in simulations)
        reached.append([not torch.equal(left[node], right[node]) for node in range(4)])
    assert reached == [[False, True, True, True], [True, True, True, True]]


def test_two_models_travel_over_every_directed_edge(ring, play):
    dechw, plain = (play(ring, method, 0).step(evaluate=False)[0].bytes_up for method in (DecHW(), FedAvg()))
    assert dechw["params"] == dechw["importance"] == plain["params"]


@pytest.mark.parametrize("mode", ["average", "freeze"])
def test_the_stars_bytes_after_the_curvature_ended_are_fedavgs(ring, play, mode):
    star, plain = play(ring, DecHWStar(2, mode), 0), play(ring, FedAvg(), 0)
    same = [star.step(evaluate=False)[0].bytes_up == plain.step(evaluate=False)[0].bytes_up for _ in range(4)]
    assert same == [False, False, True, True]


def test_released_options():
    assert DecHW("released").rule() == HessianWeighted(
        layers="all",
        kind="batch_sum",
        norm_scope="none",
        accumulate="ema",
        beta=1.0,
        include_self=False,
        weighting="uniform",
    )
    assert DecHW("released").parts().objective.early_stop == "stop"
    assert DecHW().parts().objective.early_stop == "never"
    assert DecHW("released", kind="ggn", normalize=True, accumulate="sum").rule() == HessianWeighted(
        "all", kind="ggn", norm_scope="model", accumulate="sum", include_self=False, weighting="uniform"
    )


def test_released_needs_held_out_data_and_epochs(ring, scene, play):
    with pytest.raises(UserError, match=r"partition\.holdout"):
        play(ring, DecHW("released"))
    steps = replace(scene(holdout=2), topology=Ring())
    with pytest.raises(UserError, match=r"local\.epochs"):
        play(replace(steps, work=replace(steps.work, epochs=None, steps=3)), DecHW("released"))


def test_released_leaves_the_node_itself_out(scene, play):
    """Two nodes that only hear each other swap their models."""
    pair = replace(scene(sizes=(3, 8), holdout=2), topology=Line(), init="different")
    before = play(pair, DecHW("released"), 0, STILL).hub["params"]
    after = play(pair, DecHW("released"), 1, STILL).hub["params"]
    for name, value in before.items():
        assert_close(after[name], value.flip(1), rtol=1e-12, atol=1e-14)


def test_released_keeps_the_newest_diagonal_of_batch_means(scene, play):
    """With one batch per epoch, the squared gradient of the mean loss; nothing of earlier rounds remains."""
    pair = replace(scene(sizes=(3, 8), holdout=2, batch_size=100), topology=Line(), init="different")
    released = play(pair, DecHW("released"), 3)
    newest = play(pair, DecHW("released", kind="full_grad_sq", accumulate="none"), 3)
    assert_close(released.hub["params"], newest.hub["params"], rtol=1e-10, atol=1e-12)


def test_a_sweep_over_beta_equals_separate_runs(ring, play):
    betas = (0.0, 0.5, 2.0)
    for make in (lambda beta: DecHW(beta=beta), lambda beta: DecHWStar(2, "freeze", beta=beta)):
        sweep = simulate(ring, [(make(beta), SGD(0.1)) for beta in betas])
        for _ in range(3):
            sweep.step(evaluate=False)
        for row, beta in enumerate(betas):
            alone = play(ring, make(beta), 3).hub["params"]
            swept = {name: value[row : row + 1] for name, value in sweep.hub["params"].items()}
            assert_close(swept, alone, rtol=1e-10, atol=1e-12)


def test_the_released_star_keeps_stopping_early_and_averages_uniformly_afterwards():
    later = DecHWStar(until=2, preset="released").at(2).parts()
    assert later.objective.early_stop == "stop"
    assert later.rule == ByData("uniform")


def test_a_negative_number_of_curvature_rounds_is_refused():
    with pytest.raises(UserError, match="until must be at least 0 rounds, not -1"):
        DecHWStar(until=-1)
