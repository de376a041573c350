"""FAGH: section 4.5 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fagh import FAGH, newton_step
from consilience.errors import UserError
from consilience.graphs.ring import Ring

NEWTON = FAGH(lr=0.7, rho=0.3, beta1=0.0, beta2=0.0)
"""No memory of earlier rounds."""


def flat(params):
    return torch.cat([value.flatten() for value in params.values()])


def derivatives(scene, params, shard=slice(None)):
    """The gradient and the Hessian of the mean loss by autograd, over the flattened parameters."""
    module, names = scene.build().to(scene.dtype), list(params)
    sizes, shapes = [value.numel() for value in params.values()], [value.shape for value in params.values()]
    inputs, targets = scene.dataset.inputs[shard], scene.dataset.targets[shard]

    def loss(vector):
        parts = [part.reshape(shape) for part, shape in zip(vector.split(sizes), shapes, strict=True)]
        return F.cross_entropy(
            torch.func.functional_call(module, dict(zip(names, parts, strict=True)), (inputs,)), targets
        )

    return torch.func.grad(loss)(flat(params)), torch.func.hessian(loss)(flat(params))


def start_and_step(simulation):
    """The hub's parameters before a round, and how far the round moved them, flattened."""
    before = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    return before, flat(before) - flat(tree.index(simulation.hub, 0)["params"])


@pytest.fixture
def system():
    """A random gradient and Hessian row in ten dimensions, split over two tensors; row[0] is positive."""
    random = torch.Generator().manual_seed(0)
    gradient, row = torch.randn(2, 10, generator=random, dtype=torch.float64)
    row[0] = 0.8
    return gradient, row


def split(vector):
    return {"a": vector[:4].reshape(2, 2), "b": vector[4:]}


# 1
def test_where_the_hessian_has_rank_one_the_step_is_newtons(scene, play):
    """Softmax of one sample over two classes depends on one direction: its Hessian has rank one."""
    where = replace(scene(sizes=(1,)), build=lambda: nn.Linear(6, 2))
    where.dataset.targets[:] = 1
    before, step = start_and_step(play(where, NEWTON, 0))
    gradient, hessian = derivatives(where, before)
    row = hessian[0]
    assert_close(torch.outer(row, row) / row[0], hessian, rtol=1e-10, atol=1e-14)
    dense = torch.linalg.solve(hessian + 0.3 * torch.eye(14, dtype=torch.float64), gradient)
    assert_close(step, 0.7 * dense, rtol=1e-9, atol=1e-12)


# 2
@pytest.mark.parametrize("pivot", [0.8, 0.01, -0.8])
@pytest.mark.parametrize("rho", [1.0, 0.1, 0.001])
def test_the_closed_form_is_the_dense_solve(system, pivot, rho):
    gradient, row = system
    dense = torch.outer(row, row) / pivot + rho * torch.eye(10, dtype=torch.float64)
    step = newton_step(split(gradient), split(row), torch.tensor(pivot, dtype=torch.float64), rho)
    assert_close(flat(step), torch.linalg.solve(dense, gradient), rtol=1e-9, atol=1e-9)


def test_a_vanishing_pivot_takes_the_row_out_of_the_step(system):
    gradient, row = system
    step = flat(newton_step(split(gradient), split(row), torch.tensor(0.0, dtype=torch.float64), 0.5))
    assert abs(step @ row) < 1e-12
    assert_close(step, 2 * (gradient - row * (row @ gradient) / (row @ row)))


# 3
def test_in_the_first_round_the_averages_are_the_gradient_and_the_row(scene, play):
    """So that the betas do not matter then."""
    steps = [
        start_and_step(play(scene(), FAGH(rho=0.3, beta1=b1, beta2=b2), 0))[1]
        for b1, b2 in ((0, 0), (0.9, 0.99))
    ]
    assert_close(*steps, rtol=1e-10, atol=1e-12)


# 3
def test_and_so_they_are_in_single_precision(scene, play):
    where = scene(dtype=torch.float32)
    steps = [
        start_and_step(play(where, FAGH(rho=0.3, beta1=b1, beta2=b2), 0))[1]
        for b1, b2 in ((0, 0), (0.9, 0.99))
    ]
    assert_close(*steps, rtol=1e-4, atol=1e-6)


# 4
def test_without_curvature_the_step_is_gradient_descent(system):
    gradient, _ = system
    for pivot in (0.0, 1e-12):
        step = newton_step(split(gradient), split(torch.zeros(10)), torch.tensor(pivot), 0.25)
        assert_close(flat(step), 4 * gradient)


# 5
@pytest.mark.parametrize("row_index", [0, 5, 60, "bias0"])
def test_the_hub_averages_gradients_and_hessian_rows_by_data(scene, play, row_index):
    where = scene(sizes=(7, 3), batch_size=4)
    simulation = play(where, FAGH(beta1=0.9, beta2=0.99, row_index=row_index), 0)
    before, _ = start_and_step(simulation)
    gradient, hessian = derivatives(where, before)
    position = 6 * 8 if row_index == "bias0" else row_index
    hub = tree.index(simulation.hub, 0)
    assert_close(flat(hub["gradient"]), (1 - 0.9) * gradient, rtol=1e-10, atol=1e-13)
    assert_close(flat(hub["row"]), (1 - 0.99) * hessian[position], rtol=1e-10, atol=1e-13)


def test_the_averages_decay_over_rounds(scene, play):
    where = scene(sizes=(7, 3))
    simulation = play(where, FAGH(beta1=0.5, beta2=0.8), 0)
    first, second = (derivatives(where, start_and_step(simulation)[0]) for _ in range(2))
    hub = tree.index(simulation.hub, 0)
    assert_close(flat(hub["gradient"]), 0.25 * first[0] + 0.5 * second[0], rtol=1e-10, atol=1e-13)
    assert_close(flat(hub["row"]), 0.16 * first[1][0] + 0.2 * second[1][0], rtol=1e-10, atol=1e-13)


def test_max_diag_is_the_coordinate_of_the_largest_curvature(scene, play):
    where = scene(sizes=(7, 3), module="logistic")
    where.dataset.inputs[:, 0] *= 0.1  # so that it is not the first
    simulation = play(where, FAGH(row_index="max_diag"), 0)
    before = tree.index(simulation.hub, 0)["params"]
    inputs = where.dataset.inputs
    delta = (inputs @ before["weight"].T + before["bias"]).softmax(-1) - F.one_hot(where.dataset.targets, 3)
    fisher = torch.cat([((delta**2).T @ inputs**2).flatten(), (delta**2).sum(0)])
    record = simulation.step(evaluate=False)[0]
    assert simulation.hub["pivot"]["index"].item() == fisher.argmax().item() != 0
    assert record.bytes_up["diagonal"] == 2 * 8 * 21
    assert "diagonal" not in simulation.step(evaluate=False)[0].bytes_up


@pytest.mark.parametrize("rho", [0.5, 0.01])
def test_a_negative_pivot_turns_uphill_unless_guarded(scene, play, rho):
    """The guard takes its absolute value, so that the step always goes down along the gradient."""
    where = replace(
        scene(sizes=(9,)), build=lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    )
    gradient, hessian = derivatives(where, tree.index(play(where, NEWTON, 0).hub, 0)["params"])
    negative = int(hessian.diagonal()[:24].argmin())
    assert hessian[negative, negative] < 0
    method = replace(NEWTON, rho=rho, row_index=negative)
    guarded, printed = (
        start_and_step(play(where, replace(method, curvature=c), 0))[1] for c in ("abs", "as_printed")
    )
    assert guarded @ gradient > 0
    pivot, row = hessian[negative, negative], hessian[negative]
    dense = torch.outer(row, row) / pivot + rho * torch.eye(len(row), dtype=torch.float64)
    assert_close(printed, 0.7 * torch.linalg.solve(dense, gradient), rtol=1e-6, atol=1e-8)
    # Eigenvalue |row|^2 / pivot + rho < 0: along the row the printed step climbs.
    assert row @ row > rho * pivot.abs()
    assert (printed @ row) * (gradient @ row) < 0 < (guarded @ row) * (gradient @ row)


def test_on_a_dead_pixel_it_is_momentum_descent_with_rate_lr_over_rho(scene, play):
    where = scene(sizes=(7, 3))
    where.dataset.inputs[:, 0] = 0
    simulation = play(where, FAGH(lr=0.2, rho=0.5, beta1=0.9), 0)
    average = torch.zeros(83, dtype=torch.float64)
    for number in (1, 2, 3):
        before, step = start_and_step(simulation)
        average = 0.9 * average + 0.1 * derivatives(where, before)[0]
        assert_close(step, 0.2 / 0.5 * average / (1 - 0.9**number), rtol=1e-5, atol=1e-8)
    assert flat(simulation.hub["row"]).abs().max() == 0
    alive = play(where, FAGH(row_index="bias0"), 1)
    assert flat(alive.hub["row"]).abs().max() > 0


def test_gradient_and_row_see_the_same_dropout_masks(federation):
    """The row is the slope of the very gradient that is sent, by central differences."""
    tiny = federation("dropout", sizes=(6, 3))
    unit = {name: torch.zeros_like(value) for name, value in tiny.start["params"].items()}
    next(iter(unit.values())).view(-1)[0] = 1

    def probe(client, model):
        sides = [client.grad({**model, "params": tree.axpy(e, unit, model["params"])}) for e in (1e-5, -1e-5)]
        slope = tree.scale(1 / 2e-5, tree.sub(sides[0].params, sides[1].params))
        return {"slope": slope, "row": client.hvp(model, unit)}

    sent = tiny.run(tiny.sequential(), probe).uploads
    assert flat(sent["row"]).abs().max() > 1e-3
    assert_close(sent["row"], sent["slope"], rtol=1e-5, atol=1e-8)


def test_two_models_go_up_and_one_comes_down(scene, play):
    record = play(scene(), FAGH(), 0).step(evaluate=False)[0]
    assert record.bytes_up["gradient"] == record.bytes_up["row"] == record.bytes_down["params"] == 5 * 8 * 83
    assert record.bytes_up.keys() == {"gradient", "row", "header"}


@pytest.mark.parametrize(
    ("row_index", "told"), [(0, False), (60, False), ("bias0", False), ("max_diag", True)]
)
def test_the_row_is_told_only_where_clients_voted_for_it(scene, play, row_index, told):
    simulation = play(scene(), FAGH(row_index=row_index), 1)
    down = simulation.step(evaluate=False)[0].bytes_down
    assert down.get("pivot", 0) == (5 * 8 if told else 0)
    assert ("pivot" in simulation.hub) == told


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (FAGH(row_index=83), "row_index 83 is outside the model's 83 parameters"),
        (FAGH(row_index=-1), "row_index -1 is outside the model's 83 parameters"),
    ],
)
def test_a_row_outside_the_model_is_refused(scene, play, method, message):
    with pytest.raises(UserError, match=message):
        play(scene(), method)


def test_refusals(scene, play):
    with pytest.raises(UserError, match="bias0 needs a model with a bias"):
        play(replace(scene(), build=lambda: nn.Linear(6, 3, bias=False)), FAGH(row_index="bias0"))
    with pytest.raises(UserError, match="rho must be above 0, not 0"):
        FAGH(rho=0.0)
    with pytest.raises(UserError, match=r"fagh: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FAGH())
