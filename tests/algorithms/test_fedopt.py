"""FedAvgM, FedAdagrad, FedAdam, FedYogi: section 3.5 of the algorithm reference; numbers are of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedavgm import FedAvgM
from consilience.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.objectives.proximal import Proximal
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.server_steps.adaptive import Adaptive
from consilience.server_steps.momentum import Momentum

METHODS = (FedAvgM, FedAdagrad, FedAdam, FedYogi)
STEPS = (Momentum(), Adaptive("adagrad"), Adaptive("adam"), Adaptive("yogi"))
LR, BETA1, BETA2, TAU = 0.03, 0.8, 0.7, 0.02


@pytest.fixture
def changes():
    """Six rounds' changes of eight coordinates, from far below TAU to far above."""
    random = torch.Generator().manual_seed(0)
    directions = torch.randn(6, 8, generator=random, dtype=torch.float64)
    return directions * 10.0 ** torch.arange(-4, 4, dtype=torch.float64)


def follow(server, changes):
    """Where a server goes from 1 if the uploads ask for these changes, and its last state."""
    hub = {"params": {"w": torch.ones_like(changes[0])}}
    hub |= server.init(hub["params"])
    for change in changes:
        params, state = server.apply(hub, {"w": hub["params"]["w"] + change}, None)
        hub = {"params": params, **state}
    return hub


def descend(optimiser, changes, **options):
    """Where an optimiser of torch goes if the gradients are minus these changes."""
    w = torch.ones_like(changes[0]).requires_grad_()
    torch_optimiser = optimiser([w], **options)
    for change in changes:
        w.grad = -change
        torch_optimiser.step()
    return w.detach()


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


# 1
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_without_momentum_fedavgm_is_fedavg(scene, play, dtype, tolerance):
    where = scene(dtype=dtype)
    models = model(play(where, FedAvgM(beta=0.0))), model(play(where, FedAvg()))
    assert_close(*models, rtol=10 * tolerance, atol=tolerance)


def test_momentum_is_that_of_torch(changes):
    expected = descend(torch.optim.SGD, changes, lr=LR, momentum=BETA1)
    assert_close(follow(Momentum(LR, BETA1), changes)["params"]["w"], expected, rtol=1e-10, atol=1e-13)


def test_adagrad_is_that_of_torch(changes):
    expected = descend(torch.optim.Adagrad, changes, lr=LR, eps=TAU, initial_accumulator_value=TAU**2)
    found = follow(Adaptive("adagrad", LR, 0.0, tau=TAU), changes)["params"]["w"]
    assert_close(found, expected, rtol=1e-8, atol=1e-13)


# 2
def test_adam_without_memory_takes_steps_of_one_size(changes):
    found = follow(Adaptive("adam", LR, 0.0, 0.0, TAU), changes[:1])["params"]["w"]
    expected = 1 + LR * changes[0] / (changes[0].abs() + TAU)
    assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_adams_moments_are_averages_without_bias_correction(changes):
    ages = torch.arange(len(changes) - 1, -1, -1, dtype=torch.float64)
    m = (1 - BETA1) * (BETA1 ** ages[:, None] * changes).sum(0)
    v = BETA2 ** len(changes) * TAU**2 + (1 - BETA2) * (BETA2 ** ages[:, None] * changes**2).sum(0)
    hub = follow(Adaptive("adam", LR, BETA1, BETA2, TAU), changes)
    assert_close(hub["server_momentum"]["w"], m, rtol=1e-8, atol=1e-12)
    assert_close(hub["server_scale"]["w"], v, rtol=1e-8, atol=1e-12)
    before = follow(Adaptive("adam", LR, BETA1, BETA2, TAU), changes[:-1])
    step = hub["params"]["w"] - before["params"]["w"]
    assert_close(step, LR * m / (v.sqrt() + TAU), rtol=1e-8, atol=1e-12)


def test_yogis_scale_moves_towards_the_square_by_a_part_of_the_square(changes):
    expected = []
    for column in changes.T.tolist():
        v = TAU**2
        for square in (change**2 for change in column):
            v += (1 - BETA2) * (square if square > v else -square)
        expected.append(v)
    found = follow(Adaptive("yogi", LR, BETA1, BETA2, TAU), changes)["server_scale"]["w"].tolist()
    assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_momentum_and_step_are_the_same_for_all_kinds(changes, kind):
    server = Adaptive(kind, LR, BETA1, BETA2, TAU)
    before, after = follow(server, changes[:-1]), follow(server, changes)
    m = BETA1 * before["server_momentum"]["w"] + (1 - BETA1) * changes[-1]
    step = LR * m / (after["server_scale"]["w"].sqrt() + TAU)
    assert_close(after["params"]["w"], before["params"]["w"] + step, rtol=1e-8, atol=1e-12)


# 3
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta2", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_the_scale_is_never_negative(kind, beta2, dtype):
    random = torch.Generator().manual_seed(1)
    exponents = torch.rand(2, 5000, generator=random, dtype=dtype) * 16 - 8
    start, sizes = 10**exponents
    start[:10], sizes[5:15] = 0, 0
    start[20:30] = sizes[20:30] ** 2
    zeros = torch.zeros_like(start)
    hub = {"params": {"w": zeros}, "server_momentum": {"w": zeros}, "server_scale": {"w": start}}
    for factor in (1.0, -0.5, 1.001, 0.0):
        merged = {"w": hub["params"]["w"] + factor * sizes}
        params, state = Adaptive(kind, beta2=beta2).apply(hub, merged, None)
        hub = {"params": params, **state}
        assert (state["server_scale"]["w"] >= 0).all()
        assert params["w"].isfinite().all()


# 4
@pytest.mark.parametrize("server", STEPS)
def test_no_change_and_no_momentum_leave_the_model_as_it_is(changes, server):
    assert torch.equal(follow(server, torch.zeros_like(changes))["params"]["w"], torch.ones(8).double())


# 4
@pytest.mark.parametrize("method", METHODS)
def test_clients_that_do_not_move_leave_the_model_as_it_is(scene, play, method):
    where = scene(dtype=torch.float32)
    assert_close(model(play(where, method(), 3, SGD(0.0))), model(play(where, FedAvg(), 0)), rtol=0, atol=0)


def by_hand(play, where, plain, server, rounds=3):
    """The hub's parameters if a server step is applied, outside, to what a method without one makes."""
    simulation = play(where, plain, 0)
    state = server.init(model(simulation))
    for _ in range(rounds):
        old = model(simulation)
        simulation.step(evaluate=False)
        params, state = server.apply({"params": old, **state}, model(simulation), None)
        stacked = {name: value[None] for name, value in params.items()}
        simulation.hub = {**simulation.hub, "params": stacked}
    return model(simulation)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    ("method", "server"),
    [
        (FedAvgM(0.7, 0.5), Momentum(0.7, 0.5)),
        (FedAdagrad(0.05, 0.3, 0.01), Adaptive("adagrad", 0.05, 0.3, tau=0.01)),
        (FedAdam(0.05, 0.8, 0.7, 0.01), Adaptive("adam", 0.05, 0.8, 0.7, 0.01)),
        (FedYogi(0.05, 0.8, 0.7, 0.01), Adaptive("yogi", 0.05, 0.8, 0.7, 0.01)),
    ],
)
def test_methods_are_their_server_step_after_fedavg(scene, play, method, server, weighting):
    expected = by_hand(play, scene(), FedAvg(weighting), server)
    assert_close(model(play(scene(), replace(method, weighting=weighting))), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("server", STEPS)
def test_they_go_with_hwas_rule_and_fedproxs_objective(scene, play, server):
    objective, rule = Proximal(mu=0.8), HessianWeighted()
    expected = by_hand(play, scene(), Composed(objective, rule), server)
    assert_close(model(play(scene(), Composed(objective, rule, server))), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_buffers_bypass_the_server_step(scene, play, method):
    where = scene(sizes=(7, 3), module="normalised")
    hub = play(where, method(), 1).hub
    assert_close(hub["buffers"], play(where, FedAvg(), 1).hub["buffers"], rtol=0, atol=0)
    assert hub["server_momentum"].keys() == hub["params"].keys()


@pytest.mark.parametrize(("method", "copies"), [(FedAvgM, 2), (FedAdagrad, 3), (FedAdam, 3), (FedYogi, 3)])
def test_the_hub_holds_as_much_after_any_number_of_rounds(scene, play, method, copies):
    where = scene()
    sizes = {tree.nbytes(play(where, method(), rounds).hub) for rounds in (0, 1, 3)}
    assert sizes == {copies * tree.nbytes(play(where, FedAvg(), 0).hub)}


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_fedavg(scene, play, method):
    records = [play(scene(), one, 0).step(evaluate=False)[0] for one in (method(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_down == records[1].bytes_down


def test_on_a_graph_every_node_has_a_momentum_of_its_own(scene, play):
    ring = replace(scene(), topology=Ring())
    plain, still = (play(ring, method).hub["params"] for method in (FedAvg(), FedAvgM(beta=0.0)))
    assert_close(still, plain, rtol=1e-12, atol=1e-14)
    for value in play(ring, FedAvgM()).hub["server_momentum"].values():
        assert all(not torch.equal(value[0, 0], value[0, node]) for node in range(1, 5))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: FedAvgM(-1.0), "momentum: lr must be at least 0, not -1.0"),
        (lambda: FedAvgM(beta=1.0), "momentum: beta must be below 1, not 1.0"),
        (lambda: FedAdam(beta1=1.0), "adaptive: beta1 must be below 1, not 1.0"),
        (lambda: FedYogi(beta2=1.5), "adaptive: beta2 must be below 1, not 1.5"),
        (lambda: FedYogi(beta2=-0.5), "adaptive: beta2 must be at least 0, not -0.5"),
        (lambda: FedAdagrad(tau=0.0), "adaptive: tau must be above 0, not 0.0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make, line):
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value) == line


@pytest.mark.parametrize(
    ("method", "behind"),
    [(FedAvgM, -0.03), (FedAdagrad, 0.05), (FedAdam, 0.02), (FedYogi, 0.02)],  # -0.07, 0.01, -0.02, -0.02
)
def test_they_learn(learned, method, behind):
    result = learned(method())
    assert result.rise > 0.5
    assert result.behind < behind
