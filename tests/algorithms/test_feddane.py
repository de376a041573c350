"""FedDANE: section 7.2 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.dane import DANE
from consilience.algorithms.feddane import FedDANE
from consilience.algorithms.fedprox import FedProx
from consilience.engine.rounds.cast import cohort_of
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD

COHORTS = ("independent", "same")


def flat(params):
    return tree.concatenated(params)


# 1
@pytest.mark.parametrize("cohort", COHORTS)
def test_one_full_step_is_gradient_descent(scene, one_round, derivatives, cohort):
    where = scene(epochs=1, batch_size=100)
    found = one_round(where, FedDANE(0.7, cohort), solver=SGD(0.3))
    assert_close(found.step, 0.3 * derivatives(where, found.before).mean, rtol=1e-10, atol=1e-13)


# 1
@pytest.mark.parametrize("cohort", COHORTS)
def test_every_client_takes_that_step(scene, play, one_round, derivatives, cohort):
    """Where only some take part: the gradient is the first cohort's, whoever trains."""
    where = replace(scene(epochs=1, batch_size=100), participation=2)
    method = FedDANE(0.7, cohort)
    found = one_round(where, method, solver=SGD(0.3))
    there = derivatives(where, found.before)
    senders = list(cohort_of(play(where, method, 0).world, 0).sampled[0])
    shares = there.shares[senders] / there.shares[senders].sum()
    assert_close(found.step, 0.3 * shares @ there.gradients[senders], rtol=1e-10, atol=1e-13)


def test_the_second_cohort_is_another_draw(scene, play):
    """And the same in every run; with all clients both are everybody."""
    where = replace(scene(), participation=2)
    world = play(where, FedDANE(), 0).world
    pairs = [(cohort_of(world, number, 0), cohort_of(world, number, 1)) for number in range(40)]
    agree = sum(first == second for first, second in pairs)
    assert 0 < agree < 20  # one pair in ten is the same by chance
    assert pairs == [(cohort_of(world, number, 0), cohort_of(world, number, 1)) for number in range(40)]
    everyone = play(scene(), FedDANE(), 0).world
    assert cohort_of(everyone, 3, 0) == cohort_of(everyone, 3, 1)


@pytest.mark.parametrize(("cohort", "trained"), [("independent", 1), ("same", 0)])
def test_who_trains(scene, play, cohort, trained):
    """Seen in how many samples were trained on."""
    where = replace(scene(epochs=1), participation=2)
    simulation = play(where, FedDANE(cohort=cohort), 0)
    sizes = [len(shard) for shard in where.partitions[0].shards]
    counts = [
        [
            sum(sizes[client] for client in cohort_of(simulation.world, number, drawn).sampled[0])
            for number in range(6)
        ]
        for drawn in (0, 1)
    ]
    assert counts[0] != counts[1]
    assert [simulation.step(evaluate=False)[0].samples for _ in range(6)] == counts[trained]


# 2
@pytest.mark.parametrize("cohort", COHORTS)
def test_without_training_nothing_changes(scene, one_round, cohort):
    where = replace(scene(), work=LocalWork(0, None, 4))
    assert one_round(where, FedDANE(cohort=cohort)).step.norm() < 1e-15


# 3
@pytest.mark.parametrize("cohort", COHORTS)
def test_with_everybody_and_exact_solves_it_is_dane(scene, play, cohort):
    where = scene(sizes=(7, 12, 10), module="logistic")
    options = {"newton_steps": 2, "iterations": 4, "weighting": "samples"}
    found = play(where, FedDANE(0.8, cohort, "exact", **options), 2)
    expected = play(where, DANE(1.0, 0.8, "exact", **options), 2)
    assert_close(found.hub["params"], expected.hub["params"], rtol=1e-10, atol=1e-12)


def test_steps_are_those_of_the_formula(scene, one_round, derivatives, play):
    """FedProx's, and beside them the shift: two full steps, by hand."""
    where = scene(sizes=(11, 6), module="logistic", epochs=2, batch_size=100)
    found = one_round(where, FedDANE(0.4), solver=SGD(0.2))
    there = derivatives(where, found.before)
    start = flat(found.before)
    ends = []
    for client in range(2):
        point = start
        for _ in range(2):
            own = derivatives(where, tree.divided(point, found.before)).gradients[client]
            point = point - 0.2 * (own + there.mean - there.gradients[client] + 0.4 * (point - start))
        ends.append(point)
    assert_close(start - found.step, there.shares @ torch.stack(ends), rtol=1e-11, atol=1e-13)
    prox = play(where, FedProx(0.4), 1, SGD(0.2)).hub["params"]
    assert (flat(tree.index({"params": prox}, 0)["params"]) - (start - found.step)).norm() > 1e-3


def test_clients_that_are_alike_train_as_in_fedprox(scene, play):
    where = scene(sizes=(6, 6, 6), epochs=3, batch_size=100)
    for begin in (6, 12):
        where.dataset.inputs[begin : begin + 6] = where.dataset.inputs[:6]
        where.dataset.targets[begin : begin + 6] = where.dataset.targets[:6]
    found, expected = (play(where, method, 2).hub["params"] for method in (FedDANE(0.3), FedProx(0.3)))
    assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("cohort", "models"), [("independent", 2), ("same", 1)])
def test_what_travels(scene, play, cohort, models):
    """A client of another cohort has not yet been sent the model."""
    where = replace(scene(), participation=2)
    record = play(where, FedDANE(cohort=cohort), 0).step(evaluate=False)[0]
    size = 2 * 8 * 83
    assert record.bytes_up["params"] == record.bytes_up["gradient"] == record.bytes_down["gradient"] == size
    assert record.bytes_down["params"] == models * size


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"feddane: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedDANE())
