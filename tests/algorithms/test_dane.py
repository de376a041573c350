"""DANE: section 7.1 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.dane import DANE
from consilience.algorithms.fedavg import FedAvg
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.problems import MultiLabel


def flat(params):
    return tree.concatenated(params)


# 1
@pytest.mark.parametrize(("eta", "mu"), [(1.0, 0.0), (0.6, 0.3)])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_quadratics_are_solved_in_closed_form(quadratic, one_round, derivatives, eta, mu, weighting):
    where = quadratic(batch_size=4)
    method = DANE(eta, mu, newton_steps=2, iterations=14, weighting=weighting)
    found = one_round(where, method)
    there = derivatives(where, found.before)
    shares = there.shares if weighting == "samples" else torch.full_like(there.shares, 1 / 3)
    matrices = there.hessians + mu * torch.eye(7, dtype=torch.float64)
    steps = torch.linalg.solve(matrices, (shares @ there.gradients).expand(3, 7))
    assert_close(found.step, eta * shares @ steps, rtol=1e-9, atol=1e-11)


# 1
def test_training_for_long_comes_to_the_same(quadratic, one_round):
    """Full batches, whose steps converge; the shift stays while a client trains."""
    where = replace(quadratic(), work=LocalWork(400, None, 100))
    exact, trained = (
        one_round(where, DANE(0.7, 1.0, solve, newton_steps=2, iterations=14), solver=SGD(0.1))
        for solve in ("exact", "inexact")
    )
    assert exact.step.norm() > 0.1
    assert_close(trained.step, exact.step, rtol=1e-8, atol=1e-10)


# 2
def test_one_client_ends_at_its_optimum(scene, one_round, derivatives):
    """Logistic regressions of two labels, which overlap, so that there is an optimum."""
    where = scene(sizes=(60,))
    inputs = where.dataset.inputs
    labels = (inputs[:, :2] + torch.randn(60, 2) > 0).long()
    dataset = Dataset.from_arrays("labels", inputs, labels, inputs[:5], labels[:5], problem=MultiLabel())
    where = replace(where, dataset=dataset, build=lambda: nn.Linear(6, 2))
    found = one_round(where, DANE(mu=0.0, newton_steps=8, iterations=20))
    after = tree.divided(flat(found.before) - found.step, found.before)
    assert derivatives(where, found.before).mean.norm() > 0.1
    assert derivatives(where, after).mean.norm() < 1e-12


# 2
def test_a_minimum_that_is_not_that_of_a_quadratic_is_found(scene, one_round, derivatives):
    """The shifted losses of two clients, minimised by dense Newton steps."""
    where = scene(sizes=(12, 9), module="logistic")
    found = one_round(where, DANE(mu=0.5, newton_steps=6, iterations=25))
    there = derivatives(where, found.before)
    mean = there.gradients.mean(0)
    ends = []
    for client, shard in enumerate(where.partitions[0].shards):
        inputs, targets = where.dataset.inputs[shard], where.dataset.targets[shard]
        start = flat(found.before)

        def value(vector, inputs=inputs, targets=targets, own=there.gradients[client], start=start):
            fit = F.cross_entropy(F.linear(inputs, vector[:18].reshape(3, 6), vector[18:]), targets)
            return fit - (own - mean) @ vector + 0.25 * ((vector - start) ** 2).sum()

        point = start
        for _ in range(12):
            gradient, hessian = torch.func.grad(value)(point), torch.func.hessian(value)(point)
            point = point - torch.linalg.solve(hessian, gradient)
        ends.append(point)
    assert_close(flat(found.before) - found.step, torch.stack(ends).mean(0), rtol=1e-9, atol=1e-11)


# 3
@pytest.mark.parametrize("solve", ["exact", "inexact"])
def test_where_the_gradient_vanishes_nothing_moves(quadratic, play, derivatives, solve):
    """The optimum of all clients, which is none of theirs: FedAvg walks away."""
    where = replace(quadratic(sizes=(10, 10, 10)), work=LocalWork(3, None, 100))

    def moved(method):
        simulation = play(where, method, 0)
        start = tree.index(simulation.hub, 0)["params"]
        there = derivatives(where, start)
        best = flat(start) - torch.linalg.solve(there.hessians.mean(0), there.mean)
        simulation.hub["params"] = {n: v[None] for n, v in tree.divided(best, start).items()}
        simulation.step(evaluate=False)
        return (flat(tree.index(simulation.hub, 0)["params"]) - best).norm()

    assert moved(DANE(mu=0.1, solve=solve, newton_steps=2, iterations=14)) < 1e-10
    assert moved(FedAvg()) > 1e-2


def test_the_first_step_of_training_goes_along_the_mean_gradient(scene, one_round, derivatives):
    where = scene(epochs=1, batch_size=100)
    found = one_round(where, DANE(0.5, 0.3, "inexact"), solver=SGD(0.2))
    gradients = derivatives(where, found.before).gradients
    assert_close(found.step, 0.2 * 0.5 * gradients.mean(0), rtol=1e-10, atol=1e-13)


def test_clients_that_differ_diverge_without_a_tie(scene, play):
    """The definition's warning, seen: with mu = 0 shifted losses have no minimum, with mu = 1 all is well."""
    where = scene(sizes=(20, 11, 25, 4), module="logistic")

    def loss(mu):
        params = tree.index(play(where, DANE(mu=mu), 4).hub, 0)["params"]
        outputs = F.linear(where.dataset.inputs, params["weight"], params["bias"])
        return F.cross_entropy(outputs, where.dataset.targets)

    assert loss(0.0) > 5 * loss(1.0)


def test_batch_normalisation_learns_its_statistics(scene, play):
    where = scene(sizes=(7, 3), module="normalised")
    for solve in ("exact", "inexact"):
        simulation = play(where, DANE(solve=solve, newton_steps=1, iterations=2), 0)
        before = flat(simulation.hub["buffers"])
        simulation.step(evaluate=False)
        assert flat(simulation.hub["buffers"]).isfinite().all()
        assert not torch.equal(flat(simulation.hub["buffers"]), before)


def test_what_travels(scene, play):
    record = play(scene(), DANE(newton_steps=1, iterations=1), 0).step(evaluate=False)[0]
    size = 5 * 8 * 83
    assert record.bytes_up["params"] == record.bytes_up["gradient"] == size
    assert record.bytes_down["params"] == record.bytes_down["gradient"] == size


@pytest.mark.parametrize("missing", [{"participation": 3}, {"failure_rate": 0.1}])
def test_nobody_may_be_missing(scene, play, missing):
    with pytest.raises(UserError, match=r"dane: .* set participation 1\.0 and failure_rate 0"):
        play(replace(scene(), **missing), DANE())


def test_numbers_that_make_no_sense_are_refused(scene, play):
    with pytest.raises(UserError, match="dane: newton_steps must be at least 1, not 0"):
        DANE(newton_steps=0)
    with pytest.raises(UserError, match="dane: iterations must be at least 1, not 0"):
        DANE(iterations=0)
    with pytest.raises(UserError, match="mu must be at least 0"):
        DANE(mu=-1.0)
    with pytest.raises(UserError, match=r"dane: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), DANE())
