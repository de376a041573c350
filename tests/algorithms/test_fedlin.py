"""FedLin: section 5.6 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedlin import FedLin
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.batches import Visit, training_plan
from consilience.learning.solvers import SGD
from consilience.objectives.fresh_gradients import FreshGradients


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


def gradient_of(scene, rows):
    """The gradient of the mean loss of some rows, by autograd; of a linear model."""
    inputs, targets = scene.dataset.inputs[rows], scene.dataset.targets[rows]
    return torch.func.grad(lambda params: F.cross_entropy(F.linear(inputs, *params.values()), targets))


def with_dropout(scene):
    layers = nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)
    return replace(scene, build=lambda: nn.Sequential(*layers))


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("dropout", [False, True])
def test_one_step_is_gradient_descent_exactly(scene, play, dtype, weighting, dropout):
    """Whatever the masks of dropout: those of g_k(y) and g_k(w) are the same, so they cancel."""
    full = scene(epochs=1, batch_size=100, dtype=dtype)
    simulation = play(with_dropout(full) if dropout else full, FedLin(weighting=weighting), 0, SGD(0.25))
    for _ in range(3):
        before = model(simulation)
        simulation.step(evaluate=False)
        gradient = tree.index(simulation.hub, 0)["gradient"]
        assert tree.sq_norm(gradient) > 1e-4
        # In float32, where the mean of equal models is exact.
        close = {"rtol": 0, "atol": 0} if dtype == torch.float32 else {"rtol": 1e-15, "atol": 1e-16}
        assert_close(model(simulation), tree.axpy(-0.25, gradient, before), **close)


# 1
def test_the_mean_gradient_is_that_of_all_samples(scene, play):
    full = scene(module="logistic", epochs=1, batch_size=100)
    before, after = (model(play(full, FedLin(), rounds, SGD(0.3))) for rounds in (0, 1))
    everything = gradient_of(full, slice(None))(before)
    assert_close(after, tree.axpy(-0.3, everything, before), rtol=1e-12, atol=1e-14)


# 2
@pytest.mark.parametrize("work", [{"epochs": 4, "batch_size": 100}, {"epochs": 3, "batch_size": 4}])
@pytest.mark.parametrize("solver", [SGD(0.5), SGD(0.5, momentum=0.9)])
def test_the_optimum_is_a_fixed_point_for_any_number_of_steps(scene, play, work, solver):
    """Found by Newton's method, in batches as well as in full ones; FedAvg walks away."""
    where = scene(sizes=(20, 11, 25, 4), module="logistic", **work)
    inputs, targets = where.dataset.inputs, where.dataset.targets
    flat = torch.zeros(21, dtype=torch.float64)

    def loss(vector):
        return F.cross_entropy(F.linear(inputs, vector[:18].reshape(3, 6), vector[18:]), targets)

    for _ in range(20):
        # The loss does not change when all logits do, so its Hessian is singular.
        flat = flat - torch.linalg.pinv(torch.func.jacrev(torch.func.grad(loss))(flat)) @ torch.func.grad(
            loss
        )(flat)
    best = {"weight": flat[:18].reshape(3, 6), "bias": flat[18:]}
    assert tree.sq_norm(gradient_of(where, slice(None))(best)).sqrt() < 1e-12

    def moved(method):
        simulation = play(where, method, 0, solver)
        simulation.hub["params"] = {name: value[None] for name, value in best.items()}
        simulation.step(evaluate=False)
        return tree.sq_norm(tree.sub(model(simulation), best)).sqrt()

    assert moved(FedLin()) < 1e-10
    assert moved(FedAvg()) > 1e-2


# 3
def test_equal_clients_do_gradient_descent_with_the_divided_rate(scene, play):
    """Four full-batch steps each."""
    full = scene(sizes=(6, 6, 6), epochs=4, batch_size=100)
    for begin in (6, 12):
        full.dataset.inputs[begin : begin + 6] = full.dataset.inputs[:6]
        full.dataset.targets[begin : begin + 6] = full.dataset.targets[:6]
    corrected, plain = play(full, FedLin(), 3, SGD(0.8)), play(full, FedAvg(), 3, SGD(0.2))
    assert_close(model(corrected), model(plain), rtol=1e-10, atol=1e-12)


def test_it_finds_the_optimum_of_a_convex_problem_and_fedavg_does_not(scene, play):
    """Linear convergence although clients take 3, 6 and 9 steps in batches."""
    where = scene(sizes=(10, 20, 30), module="logistic", epochs=3, batch_size=10)

    def slope(method, lr, rounds):
        return tree.sq_norm(
            gradient_of(where, slice(None))(model(play(where, method, rounds, SGD(lr))))
        ).sqrt()

    assert slope(FedLin(), 4.0, 60) < 0.05 * slope(FedLin(), 4.0, 30) < 1e-4
    assert slope(FedAvg(), 0.3, 30) > 1e-2


@dataclass(frozen=True)
class Someone:
    """As much of a client as `prepare` looks at."""

    solver: object
    steps: torch.Tensor


def test_the_learning_rate_is_divided_by_a_clients_own_steps():
    for steps in (1.0, 4.0):
        client = Someone(SGD(0.2, momentum=0.5), torch.tensor(steps))
        solver = FreshGradients().prepare(client).solver
        assert solver.lr == torch.tensor(0.2) / steps
        assert solver.momentum == 0.5
        assert FreshGradients(divide_lr=False).prepare(client) is client


def test_a_rate_that_is_not_divided_is_that_of_equal_steps(scene, play):
    where = scene(sizes=(8, 8, 8), epochs=2, batch_size=4)
    divided, whole = play(where, FedLin(), 2, SGD(0.4)), play(where, FedLin(divide_lr=False), 2, SGD(0.1))
    assert_close(model(divided), model(whole), rtol=1e-12, atol=1e-14)


def test_steps_are_those_of_the_formula(scene, play):
    """Two clients, by hand: the gradient at the hub's model is that of the same batch."""
    where = scene(sizes=(11, 6), module="logistic", epochs=2, batch_size=4)
    before, after = (model(play(where, FedLin(False, "uniform"), rounds)) for rounds in (0, 1))
    shards = where.partitions[0].shards
    own = [gradient_of(where, rows)(before) for rows in shards]
    mean = tree.scale(0.5, tree.add(*own))
    trained = []
    for client, shard in enumerate(shards):
        visit = Visit(0, 0, client, shard)
        order = training_plan([visit], [range(2)], None, 4, torch.device("cpu"))
        y = before
        for padded, size in zip(order.rows, order.sizes, strict=True):
            gradient = gradient_of(where, padded[:size])
            y = tree.axpy(-0.1, tree.add(tree.sub(gradient(y), gradient(before)), mean), y)
        trained.append(y)
    assert_close(after, tree.scale(0.5, tree.add(*trained)), rtol=1e-12, atol=1e-14)


def test_the_pass_at_the_hubs_model_moves_no_statistics(scene, play):
    where = scene(sizes=(7, 3), module="normalised")
    hubs = [play(where, method, 2, SGD(0.0)).hub for method in (FedLin(), FedAvg())]
    assert_close(hubs[0]["buffers"], hubs[1]["buffers"], rtol=0, atol=0)


def test_batch_normalisation_trains(scene, play):
    """One step from the hub's model, whose two passes see the same batch, again goes along the gradient."""
    full = scene(module="normalised", sizes=(7, 3), epochs=1, batch_size=100, dtype=torch.float32)
    simulation = play(full, FedLin(), 0, SGD(0.25))
    before = model(simulation)
    simulation.step(evaluate=False)
    expected = tree.axpy(-0.25, tree.index(simulation.hub, 0)["gradient"], before)
    assert_close(model(simulation), expected, rtol=0, atol=0)


def test_gradients_and_models_travel_both_ways(scene, play):
    record, plain = (play(scene(), method, 0).step(evaluate=False)[0] for method in (FedLin(), FedAvg()))
    size = plain.bytes_up["params"]
    assert record.bytes_up["params"] == record.bytes_up["gradient"] == record.bytes_down["gradient"] == size
    assert record.bytes_down["params"] == size  # for the gradients; clients still have it when they train


def test_it_learns(learned):
    """Measured: rise 0.62, ahead by 0.04; with larger rates a client's linear term runs away."""
    result = learned(FedLin(divide_lr=False), SGD(0.01))
    assert result.rise > 0.55
    assert result.behind < 0.0


@pytest.mark.parametrize("missing", [{"participation": 3}, {"failure_rate": 0.1}])
def test_nobody_may_be_missing(scene, play, missing):
    with pytest.raises(UserError, match=r"fedlin: .* set participation 1\.0 and failure_rate 0"):
        play(replace(scene(), **missing), FedLin())


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"fedlin: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedLin())
