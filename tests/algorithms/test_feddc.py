"""FedDC: section 5.3 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.feddc import FedDC
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.scaffold import Scaffold
from consilience.client import Trained
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD, Adam
from consilience.method import Composed
from consilience.objectives.base import Pass
from consilience.objectives.drift import DriftVariable
from consilience.objectives.proximal import Proximal
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.server_steps.add_drift import AddDrift
from consilience.server_steps.relax import Relax


def hub(simulation):
    return tree.index(simulation.hub, 0)


def memories(simulation):
    return simulation.store.load(range(simulation.world.population))


def means(stacked):
    return {name: value.mean(0) for name, value in stacked.items()}


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_pull_the_first_round_goes_twice_as_far_as_fedavg(scene, play, dtype):
    where = scene(dtype=dtype)
    start, average, twice = (
        hub(play(where, method, rounds))["params"]
        for method, rounds in ((FedAvg("uniform"), 0), (FedAvg("uniform"), 1), (FedDC(alpha=0.0), 1))
    )
    moved = tree.sub(average, start)
    assert_close(twice, tree.add(average, moved), rtol=0, atol=0)
    double = {"rtol": 1e-12, "atol": 1e-15} if dtype == torch.float64 else {}
    assert_close(
        twice, hub(play(where, Composed(rule=ByData("uniform"), server=Relax(2.0)), 1))["params"], **double
    )


# 2
def test_without_local_steps_nothing_changes(inbox):
    objective, random = DriftVariable(alpha=0.3), torch.Generator().manual_seed(0)
    some = [{"v": torch.randn(3, generator=random, dtype=torch.float64)} for _ in range(4)]
    w, c, drift, control = some
    state = {"params": w, "control": c, "drift": drift}
    client = SimpleNamespace(solver=SGD(0.1))
    idle = Trained({"params": w, "buffers": {}}, torch.zeros((), dtype=torch.float64))
    extra, kept = objective.finish(client, state, idle, {"drift": drift, "control": control})
    assert_close(kept, {"drift": drift, "control": control}, rtol=0, atol=0)
    received = inbox(tree.stack([{"params": w, **extra}] * 3), (1, 2, 3))
    assert_close(objective.absorb(state, received), {"drift": drift, "control": c}, rtol=0, atol=1e-15)
    # With no drift yet, the model stays, too.
    fresh = {"params": w, **objective.init_hub({"params": w})}
    after = {**fresh, **objective.absorb(fresh, received)}
    still, _ = AddDrift().apply(after, ByData("uniform").merge(w, received), received)
    assert_close(still, w, rtol=0, atol=1e-15)


# 3
@pytest.mark.parametrize("alpha", [0.0, 0.01, 1.0])
def test_the_new_model_is_the_mean_of_models_and_drifts(scene, play, alpha):
    """A client's model is where it started plus the change of its drift."""
    simulation = play(scene(), FedDC(alpha), 0)
    for _ in range(4):
        w, before = hub(simulation)["params"], memories(simulation)["drift"]
        simulation.step(evaluate=False)
        after = memories(simulation)["drift"]
        models = tree.add(w, tree.sub(after, before))
        assert_close(hub(simulation)["params"], means(tree.add(models, after)), rtol=1e-10, atol=1e-12)


def test_drifts_and_controls_of_all_clients_count_heard_or_not(scene, play):
    """What a hub keeps are means over all clients, also when some are not sampled and some fail."""
    simulation = play(replace(scene(), participation=4, failure_rate=0.4), FedDC(0.1), 0)
    lost = 0
    for _ in range(8):
        w, before = hub(simulation)["params"], memories(simulation)["drift"]
        lost += len(simulation.step(evaluate=False)[0].dropped)
        kept, after = memories(simulation), memories(simulation)["drift"]
        for group in ("drift", "control"):
            assert_close(hub(simulation)[group], means(kept[group]), rtol=1e-10, atol=1e-13)
        moved = tree.sub(after, before)
        heard = torch.stack([value.flatten(1).abs().sum(1) for value in moved.values()]).sum(0) > 0
        merged = means({name: w[name] + value[heard] for name, value in moved.items()})
        if heard.any():
            assert_close(hub(simulation)["params"], tree.add(merged, means(after)), rtol=1e-10, atol=1e-12)
    assert lost > 3


def test_the_first_round_is_fedprox_and_the_drift(scene, play):
    """Without drift and controls, a client is pulled to the hub's model."""
    where = scene()
    start, average = (hub(play(where, FedProx(0.4, "uniform"), rounds))["params"] for rounds in (0, 1))
    expected = tree.axpy(2.0, tree.sub(average, start), start)
    assert_close(hub(play(where, FedDC(0.4), 1))["params"], expected, rtol=1e-12, atol=1e-14)


def test_the_gradient_is_that_of_the_equation():
    random = torch.Generator().manual_seed(0)
    v, w, drift, c, own = ({"v": torch.randn(4, generator=random, dtype=torch.float64)} for _ in range(5))
    objective = DriftVariable(alpha=0.3)
    context = objective.context(None, {"params": w, "control": c}, {"drift": drift, "control": own})

    def penalty(params):
        return objective.penalty(Pass(None, params, None, None), context)

    found = objective.correct(torch.func.grad(penalty)(v), context)
    expected = 0.3 * (v["v"] - (w["v"] - drift["v"])) + c["v"] - own["v"]
    assert_close(found["v"], expected, rtol=1e-12, atol=1e-14)


def test_controls_are_scaffolds(scene, play):
    """In the first round, where a client's model is known from its drift; 2, 6 and 2 steps."""
    where = scene(sizes=(4, 11, 1), epochs=2, batch_size=4)
    simulation = play(where, FedDC(0.0), 1, SGD(0.2))
    kept = memories(simulation)
    for name, drift in kept["drift"].items():
        steps = torch.tensor([2, 6, 2]).double().reshape(-1, *[1] * (drift.ndim - 1))
        assert_close(kept["control"][name], -drift / (0.2 * steps), rtol=1e-12, atol=1e-14)
    scaffold = memories(play(where, Scaffold(), 1, SGD(0.2)))
    assert_close(kept["control"], scaffold["control"], rtol=1e-10, atol=1e-13)


def test_the_next_controls_follow_their_equation(scene, play):
    where = scene(sizes=(4, 11, 1), epochs=2, batch_size=4)
    simulation = play(where, FedDC(0.2), 2)
    control, before = hub(simulation)["control"], memories(simulation)
    simulation.step(evaluate=False)
    after = memories(simulation)
    for name, c in control.items():
        moved = after["drift"][name] - before["drift"][name]
        steps = torch.tensor([2, 6, 2]).double().reshape(-1, *[1] * (moved.ndim - 1))
        expected = before["control"][name] - c - moved / (0.1 * steps)
        assert_close(after["control"][name], expected, rtol=1e-9, atol=1e-12)


def test_on_a_convex_problem_it_finds_the_global_optimum_and_fedavg_does_not(scene, play):
    """Logistic regression, three full-batch steps a round; at the optimum the gradient is 0."""
    full = scene(sizes=(20, 20, 20), module="logistic", epochs=3, batch_size=100)

    def slope(method):
        params = hub(play(full, method, 100, SGD(0.5)))["params"]
        inputs, targets = full.dataset.inputs, full.dataset.targets
        gradient = torch.func.grad(lambda p: F.cross_entropy(F.linear(inputs, *p.values()), targets))(params)
        return float(tree.sq_norm(gradient).sqrt())

    found = [slope(method) for method in (FedDC(0.3), FedAvg("uniform"))]
    assert found[0] < 1e-5, found
    assert found[1] > 1e-2, found


def test_only_trainable_parameters_drift(scene, play):
    where = scene(sizes=(7, 3), module="normalised")
    simulation = play(where, FedDC(0.0), 1)
    assert simulation.hub["drift"].keys() == simulation.hub["params"].keys()
    averaged = play(where, FedAvg("uniform"), 1).hub
    assert_close(simulation.hub["buffers"], averaged["buffers"], rtol=0, atol=0)


def test_two_models_travel_each_way(scene, play):
    """The change of a drift is the change of the model, so it is not sent."""
    record, plain = (play(scene(), method, 0).step(evaluate=False)[0] for method in (FedDC(), FedAvg()))
    assert record.bytes_up.keys() - plain.bytes_up.keys() == {"control_change"}
    assert record.bytes_down.keys() - plain.bytes_down.keys() == {"control"}
    assert record.bytes_up["params"] == record.bytes_up["control_change"] == plain.bytes_up["params"]
    assert record.bytes_down["params"] == record.bytes_down["control"] == plain.bytes_down["params"]


def test_weight_decay_and_clipping_are_allowed_as_in_the_release(scene, play):
    where = scene()
    simulation = play(
        replace(where, work=replace(where.work, clip=0.5)), FedDC(), 3, SGD(0.1, weight_decay=1e-3)
    )
    assert_close(hub(simulation)["control"], means(memories(simulation)["control"]), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("solver", [SGD(0.1, momentum=0.5), Adam(0.01)])
def test_controls_need_sgd_without_momentum(scene, play, solver):
    with pytest.raises(UserError, match="feddc: its controls need SGD without momentum"):
        play(scene(), FedDC(), 1, solver)


def test_a_learning_rate_of_0_is_refused(scene, play):
    with pytest.raises(UserError, match="divide by the learning rate"):
        play(scene(), FedDC(), 1, SGD(0.0))


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"feddc: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedDC())


def test_a_negative_pull_is_refused():
    with pytest.raises(UserError, match=r"alpha must be at least 0, not -0\.1"):
        FedDC(-0.1)


def test_parts_that_do_not_go_together_are_refused():
    with pytest.raises(UserError, match=r"drift_variable with by_data: .* uniform"):
        Composed(DriftVariable(), ByData("samples"))
    with pytest.raises(UserError, match=r"add_drift with proximal and by_data: no drift is kept"):
        Composed(Proximal(), ByData("uniform"), AddDrift())


def test_drifts_go_with_other_rules(scene, play):
    simulation = play(scene(), Composed(DriftVariable(), HessianWeighted(), AddDrift()), 2)
    assert_close(hub(simulation)["drift"], means(memories(simulation)["drift"]), rtol=1e-10, atol=1e-13)


def test_it_learns_faster_than_fedavg(learned):
    """It is 0.10 ahead here."""
    result = learned(FedDC())
    assert result.rise > 0.6
    assert result.behind < -0.03
