"""FedNova: section 5.2 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from consilience import sweeping, tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedavgm import FedAvgM
from consilience.algorithms.fednova import FedNova
from consilience.algorithms.fedprox import FedProx
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD, Adam
from consilience.method import Composed
from consilience.objectives.control_variates import ControlVariates
from consilience.rules.by_data import ByData
from consilience.rules.normalised_steps import NormalisedSteps

PLAIN, HEAVY = SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01)


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


def coefficients(steps, momentum, pull):
    """Of every step's gradient in the final distance: the solver and the penalty on one unit of it alone."""
    found = []
    for place in range(steps):
        distance = velocity = 0.0
        for step in range(steps):
            velocity = momentum * velocity + (step == place) - pull * distance
            distance += velocity
        found.append(distance)
    return found


def recursion(steps, momentum, pull):
    return sum(abs(number) for number in coefficients(steps, momentum, pull))


def effort(steps, momentum=0.0, pull=0.0):
    """The effective number of steps that a client sends: with the pull, where there is one."""
    solver = sweeping.replace(SGD(1.0), {"momentum": momentum})
    sent = NormalisedSteps(pull).evidence(SimpleNamespace(solver=solver, steps=steps), {}, {})[0]["effort"]
    return sent.get("pulled_steps", sent["steps"])


def count(value):
    return torch.tensor(float(value))


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", [PLAIN, HEAVY])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_with_equal_steps_it_is_fedavg(scene, play, dtype, solver, weighting):
    """Sizes differ, but all of them are two batches an epoch."""
    where = scene(sizes=(7, 5, 8), dtype=dtype)
    nova, average = (play(where, method(weighting=weighting), 3, solver).hub for method in (FedNova, FedAvg))
    close = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    assert_close(nova["params"], average["params"], **close)
    assert_close(nova["buffers"], average["buffers"], rtol=0, atol=0)


# 2
NUMBERS = [
    (0.0, 0.0),
    (0.5, 0.0),
    (0.9, 0.0),
    (0.0, 0.01),
    (0.0, 0.5),
    (0.9, 1e-4),
    (0.9, 0.01),
    (0.9, 0.1),
    (0.9, 0.5),
    (0.5, 0.9),
]
"""Momentum and pull."""


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 8, 100])
@pytest.mark.parametrize(("momentum", "pull"), NUMBERS)
def test_effective_steps_are_the_coefficients_absolute_sum(steps, momentum, pull):
    expected = torch.tensor(recursion(steps, momentum, pull), dtype=torch.float64)
    exact = count(steps).double()
    assert_close(effort(exact, momentum, pull), expected, rtol=1e-10, atol=0)
    swept = [torch.tensor(number, dtype=torch.float64) for number in (momentum, pull)]
    assert_close(effort(exact, *swept), expected, rtol=1e-10, atol=0)


def test_clients_and_swept_numbers_may_all_differ_under_vmap():
    cases = [(steps, *numbers) for steps in (3, 0, 40) for numbers in NUMBERS]
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*cases, strict=True)]
    expected = torch.tensor([recursion(*case) for case in cases], dtype=torch.float64)
    assert_close(torch.func.vmap(effort)(*columns), expected, rtol=1e-10, atol=0)
    several = [column.reshape(3, -1) for column in columns]
    nested = torch.func.vmap(torch.func.vmap(effort))(*several)
    assert_close(nested.flatten(), expected, rtol=1e-10, atol=0)
    shared = torch.func.vmap(effort, in_dims=(0, None, None))(columns[0][:11], 0.9, columns[2][8])
    assert_close(shared[0], torch.tensor(recursion(3, 0.9, 0.5), dtype=torch.float64), rtol=1e-10, atol=0)


def test_a_pull_against_momentum_does_not_throw_the_server_far_away():
    """Coefficients of both signs, whose plain sum all but vanishes."""
    signed = coefficients(8, 0.9, 0.5)
    assert min(signed) < 0
    assert abs(sum(signed)) < 0.9
    further_than_fedprox = recursion(8, 0.9, 0.0) / float(effort(count(8), 0.9, 0.5))
    assert further_than_fedprox < 5


# 2
def test_the_recursions_of_the_paper_are_special_cases():
    counter = with_momentum = pulled = 0.0
    for _ in range(9):
        counter = 0.9 * counter + 1
        with_momentum += counter
        pulled = (1 - 0.05) * pulled + 1
    assert_close(float(effort(count(9).double(), 0.9)), with_momentum)
    assert_close(float(effort(count(9).double(), 0.0, 0.05)), pulled)
    assert float(effort(count(9))) == 9


def sent(solver, mu, steps, gradient):
    """What a client sends after some steps along a constant gradient, from 0."""
    params = {"v": torch.zeros(3, dtype=torch.float64)}
    state = solver.init(params)
    for _ in range(steps):
        params, state = solver.update(params, {"v": gradient + mu * params["v"]}, state)
    client = SimpleNamespace(solver=solver, steps=torch.tensor(float(steps), dtype=torch.float64))
    evidence, _ = NormalisedSteps(mu).evidence(client, {"params": params}, {})
    return {"params": params, **evidence}


# 3
@pytest.mark.parametrize("solver", [SGD(0.1), SGD(0.1, momentum=0.9)])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_a_client_with_twice_the_steps_contributes_the_same_direction(inbox, solver, mu):
    gradients = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    messages = [sent(solver, mu, steps, g) for steps, g in zip((6, 12), gradients, strict=True)]
    old = {"v": torch.zeros(3, dtype=torch.float64)}
    merged = NormalisedSteps(mu).merge(old, inbox(tree.stack(messages), (3, 1)))["v"]
    # Along constant gradients d_k is lr g_k, whatever the number of steps.
    length = 0.75 * recursion(6, solver.momentum, 0.0) + 0.25 * recursion(12, solver.momentum, 0.0)
    expected = -length * solver.lr * (0.75 * gradients[0] + 0.25 * gradients[1])
    assert_close(merged, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("solver", "mu"), [(PLAIN, 0.0), (PLAIN, 0.3), (HEAVY, 0.0), (HEAVY, 5.0)])
def test_the_merged_model_is_the_equation_by_hand(scene, play, solver, mu):
    """Each client trained alone, by FedProx, gives w_k; 2, 6 and 2 steps."""
    where = scene(sizes=(4, 11, 1))
    part, start, trained = where.partitions[0], model(play(where, FedAvg(), 0)), []
    for client in range(3):
        shards = tuple(shard if k == client else shard[:0] for k, shard in enumerate(part.shards))
        alone = replace(where, partitions={0: replace(part, shards=shards)})
        trained.append(model(play(alone, FedProx(mu=mu), 1, solver)))
    shares = [4 / 16, 11 / 16, 1 / 16]
    effective = [recursion(steps, solver.momentum, 0.1 * mu) for steps in (2, 6, 2)]
    free = [recursion(steps, solver.momentum, 0.0) for steps in (2, 6, 2)]
    length = sum(p * steps for p, steps in zip(shares, free, strict=True))
    expected = start
    for p, a, own in zip(shares, effective, trained, strict=True):
        expected = tree.axpy(-length * p / a, tree.sub(start, own), expected)
    assert_close(model(play(where, FedNova(mu=mu), 1, solver)), expected, rtol=1e-12, atol=1e-14)


def test_unequal_work_does_not_move_the_optimum_and_moves_fedavgs(inbox):
    """Quadratics `(v - a)^2 / 2`, 2 and 40 steps a round; the middle of the centres is the best."""
    solver = SGD(0.001)

    def run(rule):
        w = {"v": torch.zeros(1, dtype=torch.float64)}
        for _ in range(400):
            uploads = []
            for centre, steps in ((1.0, 2), (-1.0, 40)):
                own = w
                for _ in range(steps):
                    own, _ = solver.update(own, {"v": own["v"] - centre}, {})
                effort, _ = rule.evidence(SimpleNamespace(solver=solver, steps=count(steps)), {}, {})
                uploads.append({"params": own, **effort})
            w = rule.merge(w, inbox(tree.stack(uploads), (1, 1)))
        return abs(float(w["v"]))

    assert run(ByData()) > 0.8
    assert run(NormalisedSteps()) < 0.03


def test_stragglers_are_counted_with_the_steps_that_they_take(scene, play):
    """One lane in which some clients stop earlier: the same as the equation with their steps."""
    where = scene(sizes=(8,) * 5, epochs=4)
    lazy = replace(where, work=replace(where.work, stragglers=0.7))
    steps = [lazy.work.count(8, lazy.work.done(0, 0, client)) for client in range(5)]
    assert len(set(steps)) > 2
    part, start, trained = where.partitions[0], model(play(where, FedAvg(), 0)), []
    for client in range(5):
        shards = tuple(shard if k == client else shard[:0] for k, shard in enumerate(part.shards))
        alone = replace(lazy, partitions={0: replace(part, shards=shards)})
        trained.append(model(play(alone, FedAvg(), 1, HEAVY)))
    effective = [recursion(taken, 0.9, 0.0) for taken in steps]
    expected = start
    for a, own in zip(effective, trained, strict=True):
        expected = tree.axpy(-sum(effective) / 5 / 5 / a, tree.sub(start, own), expected)
    assert_close(model(play(lazy, FedNova(), 1, HEAVY)), expected, rtol=1e-12, atol=1e-14)


def test_a_client_without_steps_changes_nothing_but_the_length(inbox):
    params = torch.tensor([[1.0, 2.0], [5.0, 5.0]], dtype=torch.float64)
    effort = {"steps": torch.tensor([4.0, 0.0])}
    old = {"v": torch.tensor([5.0, 5.0], dtype=torch.float64)}
    merged = NormalisedSteps().merge(old, inbox({"params": {"v": params}, "effort": effort}, (1, 3)))
    # tau_eff = 1, p = 1/4, d = (w - w_0) / 4
    assert_close(merged["v"], old["v"] - 0.25 * (old["v"] - params[0]) / 4)
    idle = {"steps": torch.zeros(2)}
    still = NormalisedSteps().merge(old, inbox({"params": {"v": params}, "effort": idle}, (1, 3)))
    assert_close(still, old, rtol=0, atol=0)


def test_messages_that_did_not_come_do_not_count(inbox):
    params = torch.tensor([[1.0], [0.0], [3.0]], dtype=torch.float64)
    messages = {"params": {"v": params}, "effort": {"steps": torch.tensor([2.0, 0.0, 6.0])}}
    some = tree.index(messages, torch.tensor([0, 2]))
    old = {"v": torch.tensor([4.0], dtype=torch.float64)}
    for rule in (NormalisedSteps(), NormalisedSteps(weighting="uniform")):
        both = rule.merge(old, inbox(messages, (3, 0, 1))), rule.merge(old, inbox(some, (3, 1)))
        assert_close(*both, rtol=1e-12, atol=0)


def test_server_momentum_adds_to_the_normalised_update(scene, play):
    """With equal steps it is FedAvgM; in the first round it changes nothing."""
    where = scene(sizes=(7, 5, 8))
    heavy, average = (
        model(play(where, method, 4)) for method in (FedNova(server_momentum=0.7), FedAvgM(beta=0.7))
    )
    assert_close(heavy, average, rtol=1e-12, atol=1e-14)
    first = [model(play(scene(), FedNova(server_momentum=beta), 1)) for beta in (0.0, 0.7)]
    assert_close(*first, rtol=0, atol=0)


def test_buffers_are_averaged_as_in_fedavg(scene, play):
    where = scene(sizes=(7, 3), module="normalised")
    nova, average = (play(where, method, 1).hub for method in (FedNova(), FedAvg()))
    assert_close(nova["buffers"], average["buffers"], rtol=0, atol=0)
    assert nova["params"].keys() == average["params"].keys()
    assert not torch.equal(nova["params"]["0.weight"], average["params"]["0.weight"])


def test_clipped_gradients_are_gradients_like_others(scene, play):
    where = scene(sizes=(7, 5, 8))
    short = replace(where, work=replace(where.work, clip=0.05))
    models = [model(play(short, method, 3)) for method in (FedNova(), FedAvg())]
    assert_close(*models, rtol=1e-12, atol=1e-14)


def test_a_swept_pull_of_0_is_no_pull():
    pull = torch.tensor(0.0, dtype=torch.float64)
    client = SimpleNamespace(solver=HEAVY, steps=torch.tensor(5.0, dtype=torch.float64))
    effort = NormalisedSteps(pull).evidence(client, {}, {})[0]["effort"]
    assert_close(effort["steps"], effort["pulled_steps"], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("mu", "numbers"), [(0.0, 1), (0.2, 2)])
def test_one_number_more_travels_up_and_two_with_a_pull(scene, play, mu, numbers):
    nova, average = (
        play(scene(), method, 0).step(evaluate=False)[0] for method in (FedNova(mu=mu), FedAvg())
    )
    assert nova.bytes_down == average.bytes_down
    assert nova.bytes_up["params"] == average.bytes_up["params"]
    assert nova.bytes_up["effort"] == 5 * numbers * 8


@pytest.mark.parametrize("solver", [Adam(0.01), SGD(0.1, momentum=0.9, nesterov=True)])
def test_other_solvers_than_sgd_are_refused(scene, play, solver):
    with pytest.raises(UserError, match="fednova: it knows the effective steps of SGD"):
        play(scene(), FedNova(), 1, solver)


def test_a_pull_beyond_the_mark_is_refused(scene, play):
    with pytest.raises(UserError, match="lr times mu must be below 1, not 2"):
        play(scene(), FedNova(mu=20.0), 1, PLAIN)


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"fednova: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedNova())


def test_the_rule_goes_with_other_objectives(scene, play):
    simulation = play(scene(), Composed(ControlVariates(), NormalisedSteps(weighting="uniform")), 3)
    assert all(value.isfinite().all() for value in model(simulation).values())


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_it_learns_as_fedavg_does(learned, mu):
    result = learned(FedNova(mu=mu))
    assert result.rise > 0.5
    assert abs(result.behind) < 0.02  # equal shards, so hardly anything differs
