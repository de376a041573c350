"""GIANT: section 7.3 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.giant import GIANT
from consilience.data.partition import Partition
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solving import conjugate_gradients
from consilience.transforms.clipped import Clipped

PLAIN = GIANT(damping=0.0, iterations=20, tolerance=0.0, line_search=False)
"""Newton's directions, as they are."""


def flat(params):
    return tree.concatenated(params)


# 1
@pytest.mark.parametrize("line_search", [False, True])
def test_one_clients_quadratic_is_solved_in_one_step(quadratic, one_round, derivatives, line_search):
    where = quadratic(sizes=(15,), batch_size=4)
    found = one_round(where, replace(PLAIN, iterations=7, line_search=line_search))
    after = tree.divided(flat(found.before) - found.step, found.before)
    assert derivatives(where, found.before).gradients.norm() > 0.1
    assert derivatives(where, after).gradients.norm() < 1e-10


# 2
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_step_is_the_mean_of_dense_solutions(scene, one_round, derivatives, weighting):
    """A logistic regression on ragged clients in batches, whose Hessians are singular without damping."""
    where = scene(sizes=(7, 12, 10), module="logistic")
    method = GIANT(0.8, 0.1, 40, 0.0, line_search=False, weighting=weighting)
    found = one_round(where, method)
    there = derivatives(where, found.before)
    shares = there.shares if weighting == "samples" else torch.full_like(there.shares, 1 / 3)
    matrices = there.hessians + 0.1 * torch.eye(21, dtype=torch.float64)
    directions = torch.linalg.solve(matrices, (shares @ there.gradients).expand(3, 21))
    assert_close(found.step, 0.8 * shares @ directions, rtol=1e-8, atol=1e-11)


# 2
def test_few_iterations_give_few_iterations_of_conjugate_gradients(scene, one_round, derivatives):
    """Networks, along whose gradients the loss bends up and down: the guard is in force as well."""
    where = scene(sizes=(7, 3))
    found = one_round(where, GIANT(damping=0.02, iterations=4, tolerance=1e-8, line_search=False))
    there = derivatives(where, found.before)
    matrices = there.hessians + 0.02 * torch.eye(83, dtype=torch.float64)
    directions = [
        conjugate_gradients(lambda v, m=m: {"all": m @ v["all"]}, {"all": there.mean}, 4, 1e-8)["all"]
        for m in matrices
    ]
    assert_close(found.step, there.shares @ torch.stack(directions), rtol=1e-8, atol=1e-11)


# 3
def test_equal_hessians_make_the_step_newtons(quadratic, one_round, derivatives):
    """The same inputs everywhere, other targets: one round ends at the optimum of all data."""
    where = quadratic(sizes=(9, 9, 9), alike=True)
    found = one_round(where, PLAIN)
    there = derivatives(where, found.before)
    assert_close(there.hessians[0], there.hessians[1])
    assert (there.gradients[0] - there.gradients[1]).norm() > 0.1
    newton = torch.linalg.solve(there.hessians[0], there.mean)
    assert_close(found.step, newton, rtol=1e-9, atol=1e-11)


def test_without_iterations_to_speak_of_it_is_gradient_descent_with_the_exact_step(
    quadratic, one_round, derivatives
):
    where = quadratic(sizes=(15,))
    found = one_round(where, replace(PLAIN, iterations=1))
    there = derivatives(where, found.before)
    rate = there.mean @ there.mean / (there.mean @ there.hessians[0] @ there.mean)
    assert_close(found.step, rate * there.mean, rtol=1e-11, atol=1e-13)


def gradient_norms(where, play, rounds):
    """The norm of the whole gradient, with the l2 term, before each of some rounds of full steps."""
    simulation = play(where, replace(PLAIN, iterations=40), 0)
    module, problem, found = where.build().to(where.dtype), where.task_problem, []
    rows = torch.as_tensor(np.concatenate(where.partitions[0].shards))
    inputs, targets = where.dataset.inputs[rows], where.dataset.targets[rows]
    for _ in range(rounds):
        params = tree.index(simulation.hub, 0)["params"]

        def loss(vector, params=params):
            outputs = torch.func.functional_call(module, tree.divided(vector, params), (inputs,))
            return problem.losses(outputs, targets).mean() + where.l2 / 2 * vector @ vector

        found.append(torch.func.grad(loss)(flat(params)).norm().item())
        simulation.step(evaluate=False)
    return found


def test_where_clients_hold_the_same_convergence_is_quadratic(scene, play):
    where = replace(scene(sizes=(30, 30), module="logistic", batch_size=100), l2=0.1)
    first = where.partitions[0].shards[0]
    where = replace(where, partitions={0: replace(where.partitions[0], shards=(first, first))})
    norms = gradient_norms(where, play, 6)
    assert norms[0] > 0.1
    assert norms[-1] < 1e-11
    falls = [after / before for before, after in pairwise(norms)]
    assert all(later < 0.5 * earlier for earlier, later in pairwise(falls))


def test_on_iid_data_it_is_superlinear_until_hessians_differ_too_much(scene, play):
    """How alike they are sets a limit to the factor by which the gradient falls in a round."""
    where = replace(scene(sizes=(400,), module="logistic", batch_size=100), l2=0.1)
    dealt = tuple(np.split(np.random.default_rng(0).permutation(400), 2))
    nobody = (np.arange(0), np.arange(0))
    where = replace(where, partitions={0: Partition(dealt, nobody, {}, 0)}, participation=2)
    norms = gradient_norms(where, play, 9)
    falls = [after / before for before, after in pairwise(norms)]
    assert falls[2] < 0.5 * falls[1] < 0.25 * falls[0]
    assert max(falls[2:]) < 0.05


def losses_along(where, params, step, rates):
    """The loss of all data at some rates along a step."""
    module, problem = where.build().to(where.dtype), where.task_problem

    def loss(vector):
        outputs = torch.func.functional_call(module, tree.divided(vector, params), (where.dataset.inputs,))
        return problem.losses(outputs, where.dataset.targets).mean()

    return torch.stack([loss(flat(params) - rate * step) for rate in rates])


@pytest.mark.parametrize("lr", [1.0, 300.0])
def test_the_search_takes_the_longest_step_that_falls_far_enough(scene, one_round, derivatives, lr):
    where = scene(sizes=(7, 12, 10), module="logistic")
    method = GIANT(lr, 0.5, 20, line_search=False)
    whole = one_round(where, method)
    searched = one_round(where, replace(method, line_search=True))
    direction = whole.step / lr
    rates = [0.0, *(lr * 4.0**-number for number in range(10))]
    losses = losses_along(where, whole.before, direction, rates)
    slope = direction @ derivatives(where, whole.before).mean
    fine = [
        rate
        for rate, loss in zip(rates[1:], losses[1:], strict=True)
        if loss <= losses[0] - 0.1 * rate * slope
    ]
    assert fine
    assert (fine[0] < lr) == (lr == 300.0)
    assert_close(searched.step, fine[0] * direction, rtol=1e-8, atol=1e-11)


def test_with_the_search_the_loss_never_rises_where_full_steps_blow_it_up(scene, play):
    """Clients of different data with hardly any damping."""
    where = scene(sizes=(20, 11, 25, 4), module="logistic")

    def losses(method, rounds):
        simulation = play(where, method, 0)
        found = []
        for _ in range(rounds):
            found.append(losses_along(where, tree.index(simulation.hub, 0)["params"], 0.0, [0.0])[0])
            simulation.step(evaluate=False)
        return found

    method = GIANT(damping=1e-3)
    searched = losses(method, 15)
    assert all(after <= before + 1e-12 for before, after in pairwise(searched))
    assert searched[-1] < 0.7 * searched[0]
    assert max(losses(replace(method, line_search=False), 15)) > 2 * searched[0]


def test_a_step_whose_loss_overflows_is_too_long(scene, play):
    """Clients say so and are heard, and a shorter step is taken."""
    where = scene(sizes=(7, 12, 10), module="logistic", dtype=torch.float32)
    simulation = play(where, GIANT(lr=3e38), 0)
    record = simulation.step(evaluate=False)[0]
    assert record.dropped == ()
    assert tree.concatenated(tree.index(simulation.hub, 0)["params"]).isfinite().all()


def test_losses_and_gradients_see_the_same_dropout_masks(federation):
    """The search is along the very function whose gradient was sent, by central differences."""
    tiny = federation("dropout", sizes=(6, 3))
    way = {name: torch.randn_like(value) for name, value in tiny.start["params"].items()}

    def probe(client, model):
        sides = [client.loss({**model, "params": tree.axpy(e, way, model["params"])}) for e in (1e-5, -1e-5)]
        slope = tree.dot(client.grad(model).params, way)
        return {"slopes": {"found": slope, "expected": (sides[0] - sides[1]) / 2e-5}}

    for executor in (tiny.sequential(), tiny.batched()):
        slopes = tiny.run(executor, probe).uploads["slopes"]
        assert slopes["expected"].abs().min() > 1e-2
        assert_close(slopes["found"], slopes["expected"], rtol=1e-6, atol=1e-8)


def test_statistics_of_batch_normalisation_move_as_in_fedsgd(scene, play):
    where = scene(sizes=(7, 3), module="normalised")
    first, second = (play(where, method, 1) for method in (GIANT(), FedSGD(0.0)))
    assert_close(first.hub["buffers"], second.hub["buffers"], rtol=1e-12, atol=1e-14)


def test_what_travels(scene, play):
    searching, plain = (
        play(scene(), GIANT(line_search=search, iterations=2), 0).step(evaluate=False)[0]
        for search in (True, False)
    )
    size = 5 * 8 * 83
    for record in (searching, plain):
        assert record.bytes_up["gradient"] == record.bytes_up["direction"] == size
        assert record.bytes_down["params"] == record.bytes_down["gradient"] == size
    assert searching.bytes_down["direction"] == size
    assert searching.bytes_up["losses"] == 5 * 8 * 11
    assert "direction" not in plain.bytes_down
    assert "losses" not in plain.bytes_up


def test_transforms_change_the_directions_too(scene, one_round):
    """Clipped to nothing, they move nothing, although gradients are clipped as well."""
    where = scene(sizes=(7, 3))
    method = GIANT(line_search=False, damping=10.0)
    clipped = one_round(where, Clipped(1e-3)(method)).step
    assert_close(clipped.norm(), torch.tensor(1e-4, dtype=torch.float64), rtol=0.5, atol=0)
    assert one_round(where, method).step.norm() > 1e-2


def test_numbers_that_make_no_sense_are_refused(scene, play):
    with pytest.raises(UserError, match="iterations must be at least 1, not 0"):
        GIANT(iterations=0)
    with pytest.raises(UserError, match="damping must be at least 0"):
        GIANT(damping=-0.1)
    with pytest.raises(UserError, match=r"giant: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), GIANT())
