"""DONE: section 7.4 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.done import DONE
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.giant import GIANT
from consilience.errors import UserError
from consilience.graphs.ring import Ring


def powers(hessians, rate, count):
    """[powers, clients, ...] those of I - rate H_k, from the 0th on."""
    keep = torch.eye(hessians.shape[-1], dtype=hessians.dtype) - rate * hessians
    return torch.stack([torch.linalg.matrix_power(keep, power) for power in range(count)])


# 1
@pytest.mark.parametrize("module", ["logistic", "mlp"])
@pytest.mark.parametrize(("weighting", "iterations"), [("samples", 6), ("uniform", 3)])
def test_the_step_is_the_mean_of_geometric_sums(scene, one_round, derivatives, module, weighting, iterations):
    """Whether or not Hessians are positive."""
    where = scene(sizes=(7, 12, 10), module=module)
    found = one_round(where, DONE(0.8, 0.05, iterations, weighting=weighting))
    there = derivatives(where, found.before)
    shares = there.shares if weighting == "samples" else torch.full_like(there.shares, 1 / 3)
    sums = 0.05 * powers(there.hessians, 0.05, iterations).sum(0) @ (shares @ there.gradients)
    assert_close(found.step, 0.8 * shares @ sums, rtol=1e-10, atol=1e-13)


# 2
def test_one_iteration_is_gradient_descent(scene, play):
    where = scene()
    found, expected = (play(where, method, 3).hub["params"] for method in (DONE(0.5, 0.2, 1), FedSGD(0.1)))
    assert_close(found, expected, rtol=1e-11, atol=1e-13)


# 3
def test_many_iterations_of_one_client_are_newtons_step(quadratic, one_round, derivatives):
    where = quadratic(sizes=(30,), batch_size=8)
    largest = torch.linalg.eigvalsh(derivatives(where, one_round(where, FedSGD()).before).hessians[0])[-1]
    found = one_round(where, DONE(rate=1 / float(largest), iterations=400))
    after = tree.divided(tree.concatenated(found.before) - found.step, found.before)
    assert derivatives(where, found.before).mean.norm() > 0.1
    assert derivatives(where, after).mean.norm() < 1e-9


def test_on_the_way_there_it_comes_nearer_to_giant(quadratic, one_round):
    """The rate is small enough for all clients."""
    where = quadratic()
    newton = one_round(where, GIANT(damping=0.0, iterations=14, line_search=False)).step
    steps = [one_round(where, DONE(rate=0.1, iterations=count)).step for count in (1, 20, 150)]
    gaps = [float((step - newton).norm()) for step in steps]
    assert newton.norm() > gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.4 * gaps[0]


def test_too_large_a_rate_diverges(quadratic, one_round, derivatives):
    """Above 2 / the largest eigenvalue: the definition's warning, seen."""
    where = quadratic(sizes=(30,))
    largest = float(
        torch.linalg.eigvalsh(derivatives(where, one_round(where, DONE()).before).hessians[0])[-1]
    )
    lengths = [one_round(where, DONE(rate=rate / largest, iterations=60)).step.norm() for rate in (1.8, 2.2)]
    assert lengths[1] > 100 * lengths[0]


def test_it_can_start_at_the_gradient_as_the_release_does(scene, one_round, derivatives):
    where = scene(sizes=(7, 12), module="logistic")
    found = one_round(where, DONE(rate=0.05, iterations=4, start="gradient"))
    there = derivatives(where, found.before)
    known = powers(there.hessians, 0.05, 5)
    directions = (0.05 * known[:4].sum(0) + known[4]) @ there.mean
    assert_close(found.step, there.shares @ directions, rtol=1e-10, atol=1e-13)


def test_what_travels(scene, play):
    record = play(scene(), DONE(iterations=2), 0).step(evaluate=False)[0]
    size = 5 * 8 * 83
    assert record.bytes_up["gradient"] == record.bytes_up["direction"] == size
    assert record.bytes_down["params"] == record.bytes_down["gradient"] == size
    assert record.bytes_up.keys() == {"gradient", "direction", "header"}


def test_some_clients_may_be_missing(scene, play):
    """Both exchanges of a round are those of one cohort."""
    where = replace(scene(module="logistic"), participation=2)
    simulation = play(where, DONE(), 0)
    for _ in range(3):
        record = simulation.step(evaluate=False)[0]
        assert record.bytes_up["gradient"] == record.bytes_up["direction"] == 2 * 8 * 21


def test_numbers_that_make_no_sense_are_refused(scene, play):
    with pytest.raises(UserError, match="iterations must be at least 1, not 0"):
        DONE(iterations=0)
    with pytest.raises(UserError, match="rate must be at least 0"):
        DONE(rate=-0.1)
    with pytest.raises(UserError, match=r"done: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), DONE())
