"""SCAFFOLD: section 5.1 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.scaffold import Scaffold
from consilience.client import Trained
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD, Adam
from consilience.method import Composed
from consilience.objectives.base import Objective
from consilience.objectives.control_variates import ControlVariates
from consilience.rules.by_data import ByData


def controls(simulation):
    """The hub's control and the mean of all clients'."""
    memories = simulation.store.load(range(simulation.world.population))
    mean = {name: value.mean(0) for name, value in memories["control"].items()}
    return tree.index(simulation.hub, 0)["control"], mean


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_controls_switched_off_it_is_fedavg_bit_for_bit(scene, play, dtype):
    where = scene(dtype=dtype)
    off = Composed(ControlVariates(update=False), ByData("uniform"))
    models = [play(where, method).hub["params"] for method in (off, FedAvg("uniform"))]
    assert_close(*models, rtol=0, atol=0)


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_round_is_fedavg_bit_for_bit(scene, play, option, dtype):
    where = scene(dtype=dtype)
    models = [play(where, method, 1).hub["params"] for method in (Scaffold(option), FedAvg("uniform"))]
    assert_close(*models, rtol=0, atol=0)


# 2
@pytest.mark.parametrize("option", ["I", "II"])
def test_the_hubs_control_is_the_mean_of_the_clients_after_every_round(scene, play, option):
    simulation = play(scene(), Scaffold(option), 0)
    for _ in range(4):
        simulation.step(evaluate=False)
        assert_close(*controls(simulation), rtol=1e-10, atol=1e-13)


# 2
@pytest.mark.parametrize("option", ["I", "II"])
def test_and_so_it_is_when_some_are_not_sampled_and_some_fail(scene, play, option):
    simulation = play(replace(scene(), participation=4, failure_rate=0.4), Scaffold(option), 0)
    lost = 0
    for _ in range(8):
        lost += len(simulation.step(evaluate=False)[0].dropped)
        assert_close(*controls(simulation), rtol=1e-10, atol=1e-13)
    assert lost > 3


# 3
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_one_full_batch_step_is_gradient_descent_on_the_mean_of_the_clients(scene, play, option, server_lr):
    """Equal shards, so that FedSGD's weights are uniform, too."""
    full = scene(sizes=(4, 4, 4), epochs=1, batch_size=100)
    models = [
        play(full, method, 5, SGD(0.2)).hub["params"]
        for method in (Scaffold(option, server_lr), FedSGD(server_lr * 0.2))
    ]
    assert_close(*models, rtol=1e-10, atol=1e-13)


# 4
def test_on_quadratics_it_finds_the_global_optimum_and_fedavg_does_not():
    """Three clients `(y - a)' H (y - a) / 2`, ten full-gradient steps a round, by the objective itself."""
    random = torch.Generator().manual_seed(0)
    hessians = torch.diag_embed(0.2 + torch.rand(3, 4, generator=random, dtype=torch.float64))
    centres = torch.randn(3, 4, generator=random, dtype=torch.float64)
    best = torch.linalg.solve(hessians.sum(0), (hessians @ centres[:, :, None]).sum(0))[:, 0]

    def run(objective):
        solver, steps = SGD(0.3), torch.tensor(10.0, dtype=torch.float64)
        client = SimpleNamespace(solver=solver)
        start = {"params": {"y": torch.zeros(4, dtype=torch.float64)}}
        hub = {**start, **objective.init_hub(start)}
        memories = [objective.init_memory(start) for _ in range(3)]
        for _ in range(200):
            down, uploads = {**hub, **objective.download(hub)}, []
            for k in range(3):
                params, context = hub["params"], objective.context(client, down, memories[k])
                for _ in range(10):
                    grads = {"y": hessians[k] @ (params["y"] - centres[k])}
                    params, _ = solver.update(params, objective.correct(grads, context), {})
                trained = Trained({"params": params, "buffers": {}}, steps)
                extra, kept = objective.finish(client, down, trained, memories[k])
                memories[k] = {**memories[k], **kept}
                uploads.append({"params": params, **extra})
            stacked = tree.stack(uploads)
            received = SimpleNamespace(
                population=3, sum=lambda group, s=stacked: {n: v.sum(0) for n, v in s[group].items()}
            )
            mean = {"y": stacked["params"]["y"].mean(0)}
            hub = {**hub, **objective.absorb(hub, received), "params": mean}
        return (hub["params"]["y"] - best).norm()

    assert run(ControlVariates()) < 1e-8
    assert run(Objective()) > 0.05


# 4
def test_on_a_convex_problem_it_finds_the_global_optimum_and_fedavg_does_not(scene, play):
    """Logistic regression, three full-batch steps a round; at the optimum the gradient is 0."""
    full = scene(sizes=(20, 20, 20), module="logistic", epochs=3, batch_size=100)

    def slope(method):
        params = tree.index(play(full, method, 50, SGD(1.5)).hub, 0)["params"]
        inputs, targets = full.dataset.inputs, full.dataset.targets
        gradient = torch.func.grad(lambda p: F.cross_entropy(F.linear(inputs, *p.values()), targets))(params)
        return tree.sq_norm(gradient).sqrt()

    assert slope(Scaffold("I")) < 1e-5
    assert slope(Scaffold("II")) < 1e-5
    assert slope(FedAvg("uniform")) > 1e-2


def test_steps_are_those_that_a_client_really_takes(scene, play):
    """In the first round `control = (w - y) / (steps lr)`, so the models y follow from the controls."""
    where = scene(sizes=(4, 11, 1), epochs=2, batch_size=4)
    simulation = play(where, Scaffold(), 0, SGD(0.2))
    start = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    kept, steps = simulation.store.load(range(3))["control"], [2, 6, 2]
    for name, value in start.items():
        models = torch.stack([value - 0.2 * count * kept[name][k] for k, count in enumerate(steps)])
        assert_close(simulation.hub["params"][name][0], models.mean(0), rtol=1e-12, atol=1e-14)


def test_controls_cover_trainable_parameters_only(scene, play):
    simulation = play(scene(sizes=(7, 3), module="normalised"), Scaffold(), 1)
    assert simulation.hub["control"].keys() == simulation.hub["params"].keys()
    averaged = play(scene(sizes=(7, 3), module="normalised"), FedAvg("uniform"), 1).hub
    assert_close(simulation.hub["buffers"], averaged["buffers"], rtol=0, atol=0)


def test_option_i_is_the_gradient_at_the_hubs_model(scene, play):
    where = scene(sizes=(7,), module="logistic")
    simulation = play(where, Scaffold("I"), 0)
    before = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    inputs, targets = where.dataset.inputs, where.dataset.targets
    gradient = torch.func.grad(lambda p: F.cross_entropy(F.linear(inputs, *p.values()), targets))(before)
    assert_close(tree.index(simulation.store.load([0]), 0)["control"], gradient, rtol=1e-12, atol=1e-14)


def test_after_one_full_batch_step_both_options_remember_the_gradient_at_the_hubs_model(scene, play):
    full = scene(epochs=1, batch_size=100)
    kept = [play(full, Scaffold(option), 3).store.load(range(5)) for option in ("I", "II")]
    assert_close(*kept, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("solver", [SGD(0.1, momentum=0.5), SGD(0.1, weight_decay=0.1), Adam(0.01)])
def test_option_ii_needs_plain_sgd_and_option_i_does_not(scene, play, solver):
    with pytest.raises(UserError, match="option II needs plain SGD"):
        play(scene(), Scaffold("II"), 1, solver)
    simulation = play(scene(), Scaffold("I"), 3, solver)
    assert_close(*controls(simulation), rtol=1e-10, atol=1e-13)


def test_option_ii_counts_no_steps_after_an_early_stop(scene, play):
    """The held-out labels contradict: the second epoch of three is the last, and two steps were taken."""
    where = scene(sizes=(6,), holdout=6, epochs=3, batch_size=100)
    where.dataset.inputs[6:12] = where.dataset.inputs[:6]
    where.dataset.targets[:6], where.dataset.targets[6:12] = 0, 1
    simulation = play(where, Composed(ControlVariates(early_stop="stop"), ByData("uniform")), 0)
    start = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    moved = tree.sub(start, tree.index(simulation.hub, 0)["params"])
    kept = tree.index(simulation.store.load([0]), 0)["control"]
    assert_close(kept, tree.scale(1 / (2 * 0.1), moved), rtol=1e-10, atol=1e-13)


def test_two_models_travel_each_way(scene, play):
    record, plain = (play(scene(), method, 0).step(evaluate=False)[0] for method in (Scaffold(), FedAvg()))
    assert record.bytes_up["params"] == record.bytes_up["control_change"] == plain.bytes_up["params"]
    assert record.bytes_down["params"] == record.bytes_down["control"] == plain.bytes_down["params"]


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"scaffold: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), Scaffold())
