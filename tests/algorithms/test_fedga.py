"""FedGA: section 5.5 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedga import FedGA
from consilience.engine.rounds.store import Store
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.objectives.aligned_start import AlignedStart
from consilience.server_steps.relax import Relax

SIZES = (7, 3, 10, 1, 5)


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


def shares(weighting):
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    return sizes / sizes.sum() if weighting == "samples" else torch.full((5,), 0.2, dtype=torch.float64)


def gradient_of(scene, client):
    """The full gradient of a client's mean loss, by autograd; of a linear model."""
    rows = scene.partitions[0].shards[client]
    inputs, targets = scene.dataset.inputs[rows], scene.dataset.targets[rows]
    return torch.func.grad(lambda params: F.cross_entropy(F.linear(inputs, *params.values()), targets))


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01)])
def test_without_a_displacement_it_is_fedavg_bit_for_bit(scene, play, dtype, solver):
    where = scene(dtype=dtype)
    models = [play(where, method, 3, solver).hub["params"] for method in (FedGA(beta=0.0), FedAvg())]
    assert_close(*models, rtol=0, atol=0)


@pytest.fixture
def gradients_stay(monkeypatch):
    """What clients remember within a round can be looked at after it."""
    monkeypatch.setattr(Store, "end_round", lambda store: None)


# 2
@pytest.mark.usefixtures("gradients_stay")
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_displacements_cancel(scene, play, weighting):
    simulation = play(scene(), FedGA(beta=0.3, weighting=weighting), 2)
    hub, memories = tree.index(simulation.hub, 0), simulation.store.load(range(5))
    displaced = [AlignedStart(beta=0.3).context(None, hub, tree.index(memories, k)) for k in range(5)]
    for value in tree.stack(displaced)["displacement"].values():
        assert value.abs().amax() > 1e-3
        assert torch.tensordot(shares(weighting), value, 1).abs().amax() < 1e-12


# 3
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_one_full_batch_step_descends_at_the_displaced_points(scene, play, server_lr, weighting):
    full = scene(module="logistic", epochs=1, batch_size=100)
    simulation = play(full, FedGA(0.3, server_lr, weighting), 0, SGD(0.2))
    for _ in range(3):
        w = model(simulation)
        own = [gradient_of(full, k)(w) for k in range(5)]
        share = shares(weighting)
        mean = {name: sum(share[k] * own[k][name] for k in range(5)) for name in w}
        starts = [tree.axpy(0.3, tree.sub(own[k], mean), w) for k in range(5)]
        steps = [gradient_of(full, k)(starts[k]) for k in range(5)]
        expected = {n: w[n] - server_lr * 0.2 * sum(share[k] * steps[k][n] for k in range(5)) for n in w}
        simulation.step(evaluate=False)
        assert_close(model(simulation), expected, rtol=1e-12, atol=1e-14)


# 4
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_with_equal_clients_it_is_fedavg(scene, play, beta):
    full = scene(sizes=(6, 6, 6), epochs=3, batch_size=100)
    for begin in (6, 12):
        full.dataset.inputs[begin : begin + 6] = full.dataset.inputs[:6]
        full.dataset.targets[begin : begin + 6] = full.dataset.targets[:6]
    assert_close(model(play(full, FedGA(beta))), model(play(full, FedAvg())), rtol=1e-10, atol=1e-12)


def test_clients_that_differ_are_not_those_of_fedavg(scene, play):
    ahead = tree.sub(model(play(scene(), FedGA(1.0))), model(play(scene(), FedAvg())))
    assert tree.sq_norm(ahead).sqrt() > 1e-3


def test_clients_that_do_not_train_leave_the_model_as_it_is(scene, play):
    """What is sent is w plus the move: the displacement itself does not count, whatever the shares."""
    before, after = (model(play(scene(), FedGA(10.0, 0.5), rounds, SGD(0.0))) for rounds in (0, 2))
    assert_close(before, after, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("gradients_stay")
def test_models_may_be_averaged_instead_of_moves(scene, play):
    """Displacements cancel in the mean of what clients send."""
    objective = AlignedStart(beta=0.5)
    simulation = play(scene(), FedGA(0.5), 1)
    hub, memories = tree.index(simulation.hub, 0), simulation.store.load(range(5))
    contexts = [objective.context(None, hub, tree.index(memories, k)) for k in range(5)]
    starts = tree.stack([{"params": objective.start(hub, context)["params"]} for context in contexts])
    for name, value in starts["params"].items():
        mean = torch.tensordot(shares("samples"), value, 1)
        assert_close(mean, hub["params"][name], rtol=1e-12, atol=1e-14)
        assert (value - mean).abs().amax() > 1e-4


def test_displacements_cancel_among_those_who_take_part(scene, play):
    """Of some clients in a round, all that train with a learning rate of 0, the mean start is w."""
    some = replace(scene(), participation=2, failure_rate=0.2)
    simulation = play(some, Composed(AlignedStart(beta=0.4), server=Relax(0.5)), 4, SGD(0.0))
    assert_close(model(simulation), model(play(some, FedAvg(), 0)), rtol=1e-12, atol=1e-14)


def test_gradients_and_models_travel_both_ways(scene, play):
    record, plain = (play(scene(), method, 0).step(evaluate=False)[0] for method in (FedGA(), FedAvg()))
    size = plain.bytes_up["params"]
    assert record.bytes_up["params"] == record.bytes_up["gradient"] == record.bytes_down["gradient"] == size
    assert record.bytes_down["params"] == size  # for the gradients; clients still have it when they train


def test_it_learns(learned):
    """Measured: rise 0.61, ahead by 0.01; with two classes a client the paper's 0.1 is too far away."""
    result = learned(FedGA(beta=0.01))
    assert result.rise > 0.55
    assert result.behind < 0.03


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"fedga: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedGA())


def test_a_negative_displacement_is_refused():
    with pytest.raises(UserError, match=r"beta must be at least 0, not -0\.1"):
        FedGA(beta=-0.1)
