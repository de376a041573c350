"""Conjugate gradients, Richardson's iteration, line searches and Newton's method over named tensors."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.learning.solving import (
    backtracked,
    conjugate_gradients,
    damped,
    newton_minimum,
    richardson,
    trial_rates,
)

SIZE = 12


def split(vector):
    return {"a": vector[..., :8].reshape(*vector.shape[:-1], 2, 4), "b": vector[..., 8:]}


def flat(params):
    return tree.concatenated(params)


def times(matrix):
    """The operator of a dense matrix."""
    return lambda vector: split(matrix @ flat(vector))


def with_eigenvalues(values):
    basis, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64))
    return basis * values @ basis.T


@pytest.fixture
def positive():
    """A positive matrix and a vector."""
    values = torch.linspace(0.5, 4, SIZE, dtype=torch.float64)
    return with_eigenvalues(values), torch.randn(SIZE, dtype=torch.float64)


def test_as_many_iterations_as_dimensions_solve_the_system(positive):
    matrix, target = positive
    found = conjugate_gradients(times(matrix), split(target), SIZE)
    assert_close(flat(found), torch.linalg.solve(matrix, target), rtol=1e-9, atol=1e-11)


def test_more_iterations_than_needed_do_no_harm(positive):
    matrix, target = positive
    found = conjugate_gradients(times(matrix), split(target), 100)
    assert_close(flat(found), torch.linalg.solve(matrix, target), rtol=1e-11, atol=1e-13)
    single = conjugate_gradients(times(matrix.float()), split(target.float()), 100)
    assert_close(flat(single).double(), flat(found), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_an_iterate_is_the_best_of_its_krylov_space(positive, count):
    """It minimises x.Ax/2 - x.b over the span of b, Ab, ..., A^(count-1) b."""
    matrix, target = positive
    krylov = torch.stack([torch.linalg.matrix_power(matrix, power) @ target for power in range(count)], 1)
    basis, _ = torch.linalg.qr(krylov)
    best = basis @ torch.linalg.solve(basis.T @ matrix @ basis, basis.T @ target)
    found = conjugate_gradients(times(matrix), split(target), count)
    assert_close(flat(found), best, rtol=1e-8, atol=1e-10)


def test_iterates_stay_once_the_residual_is_small_enough(positive):
    matrix, target = positive
    few = [flat(conjugate_gradients(times(matrix), split(target), count)) for count in range(SIZE)]
    parts = [float((target - matrix @ one).norm() / target.norm()) for one in few]
    for count in (3, 6):
        tolerance = (parts[count] * parts[count - 1]) ** 0.5
        assert parts[count] < tolerance < min(parts[:count])
        found = conjugate_gradients(times(matrix), split(target), 40, tolerance)
        assert_close(flat(found), few[count], rtol=1e-12, atol=1e-14)


def test_where_the_first_direction_bends_down_the_target_itself_is_given(positive):
    matrix, target = positive
    for bent in (-matrix, torch.zeros_like(matrix)):
        assert_close(flat(conjugate_gradients(times(bent), split(target), 9)), target, rtol=0, atol=0)


def test_where_a_later_direction_bends_down_the_iterate_before_it_is_given():
    """The eigenvalue below 0 is hardly seen in the first direction."""
    values = torch.linspace(0.5, 4, SIZE, dtype=torch.float64)
    values[0] = -1.0
    vectors, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64))
    matrix = vectors * values @ vectors.T
    target = vectors @ torch.cat([torch.tensor([0.05]), torch.ones(SIZE - 1)]).double()
    iterates = [flat(conjugate_gradients(times(matrix), split(target), count)) for count in range(1, 30)]
    different = [not torch.equal(one, iterates[-1]) for one in iterates]
    last = different.index(False)
    assert 1 <= last < SIZE
    assert not any(different[last:])
    assert iterates[-1] @ target > 0
    # The direction that is not taken really is one of those along which the matrix is not positive.
    residual = target - matrix @ iterates[last]
    moved = iterates[last] - iterates[last - 1]
    before = target - matrix @ iterates[last - 1]
    direction = residual + (residual @ residual) / (before @ before) * moved * (
        (before @ before) / (moved @ before)
    )
    assert direction @ matrix @ direction < 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_the_matrix_gives_0_nothing_runs_away(dtype):
    """A singular matrix, and iterations enough to get to the rounding in the directions that it maps to 0."""
    values = torch.linspace(0.5, 4, SIZE, dtype=torch.float64)
    values[:3] = 0
    matrix = with_eigenvalues(values)
    target = (matrix @ torch.randn(SIZE, dtype=torch.float64)).to(dtype)
    found = flat(conjugate_gradients(times(matrix.to(dtype)), split(target), 60))
    assert_close(matrix.to(dtype) @ found, target, rtol=0, atol=1e4 * torch.finfo(dtype).eps)
    assert found.norm() < 3 * (torch.linalg.pinv(matrix, rtol=1e-9) @ target.double()).norm()


def test_nothing_is_asked_for_nothing(positive):
    matrix, target = positive
    assert flat(conjugate_gradients(times(matrix), split(0 * target), 5)).abs().max() == 0
    assert flat(richardson(times(matrix), split(0 * target), 0.1, 5)).abs().max() == 0


@pytest.mark.parametrize("where", ["matrix", "target"])
def test_what_is_not_a_number_reaches_the_result(positive, where):
    matrix, target = positive
    (matrix if where == "matrix" else target)[..., 0] = torch.nan
    assert flat(conjugate_gradients(times(matrix), split(target), 5, 1e-3)).isnan().any()
    assert flat(richardson(times(matrix), split(target), 0.1, 5, tolerance=1e-3)).isnan().any()


def test_many_systems_at_once_each_stop_on_their_own():
    """One is solved early, one bends down at once, one later, one has nothing to solve."""
    values = torch.linspace(0.5, 4, SIZE, dtype=torch.float64)
    mixed = values.clone()
    mixed[:2] = -0.3
    matrices = torch.stack([with_eigenvalues(one) for one in (values, -values, mixed, values)])
    matrices = torch.cat([matrices, torch.eye(SIZE, dtype=torch.float64)[None]])
    targets = torch.randn(5, SIZE, dtype=torch.float64)
    targets[3] = 0

    def solve(matrix, target, tolerance):
        return conjugate_gradients(times(matrix), target, 9, tolerance)

    def iterate(matrix, target, rate):
        return richardson(times(matrix), target, rate, 9, tolerance=0.5)

    numbers = torch.logspace(-3, -1, 5, dtype=torch.float64)
    for function in (solve, iterate):
        together = torch.func.vmap(function)(matrices, split(targets), numbers)
        for row in range(5):
            alone = function(matrices[row], split(targets[row]), float(numbers[row]))
            assert_close(
                {name: value[row] for name, value in together.items()}, alone, rtol=1e-10, atol=1e-12
            )


@pytest.mark.parametrize("iterations", [1, 2, 9])
@pytest.mark.parametrize("started", [False, True])
def test_richardson_is_a_geometric_sum(positive, iterations, started):
    matrix, target = positive
    keep = torch.eye(SIZE, dtype=torch.float64) - 0.2 * matrix
    powers = [torch.linalg.matrix_power(keep, power) for power in range(iterations + 1)]
    start = torch.randn(SIZE, dtype=torch.float64) if started else torch.zeros(SIZE, dtype=torch.float64)
    expected = 0.2 * sum(powers[:-1]) @ target + powers[-1] @ start
    given = split(start) if started else None
    found = richardson(times(matrix), split(target), 0.2, iterations, given)
    assert_close(flat(found), expected, rtol=1e-12, atol=1e-14)


def test_richardson_converges_to_the_solution_and_stays_there(positive):
    matrix, target = positive
    solution = torch.linalg.solve(matrix, target)
    found = flat(richardson(times(matrix), split(target), 0.4, 300))
    assert_close(found, solution, rtol=1e-10, atol=1e-12)
    rough = [
        flat(richardson(times(matrix), split(target), 0.4, count, tolerance=0.01)) for count in (100, 200)
    ]
    assert torch.equal(*rough)
    assert 1e-5 < (target - matrix @ rough[0]).norm() / target.norm() < 0.01


def test_damping_is_added_to_the_diagonal(positive):
    matrix, target = positive
    expected = matrix @ target + 0.7 * target
    assert_close(flat(damped(times(matrix), 0.7)(split(target))), expected, rtol=1e-14, atol=1e-14)


def test_the_longest_step_that_falls_far_enough_is_taken():
    """Along f(x) = x^2 from 1, slope 2 p with p = 3: at 1 - 3 rate."""
    one = torch.ones((), dtype=torch.float64)
    rates = trial_rates(1.0, {"x": one})
    assert_close(rates, 4.0 ** -torch.arange(10.0, dtype=torch.float64), rtol=0, atol=0)
    chosen = backtracked(one, (1 - 3 * rates) ** 2, rates, 6 * one)
    assert chosen == 0.25
    assert backtracked(one, 1 + rates, rates, 6 * one) == 0  # uphill
    nowhere = torch.full_like(rates, torch.nan)
    assert backtracked(one, nowhere, rates, 6 * one) == 0
    # Near the minimum f says nothing any more, and the full step is as good as any.
    assert backtracked(one, torch.ones_like(rates), rates, 1e-17 * one) == 1


@pytest.fixture
def logistic():
    """The regularised loss of a logistic regression over named tensors, and its derivatives."""
    inputs = torch.randn(40, 3, dtype=torch.float64)
    targets = torch.randint(0, 4, (40,))

    def loss(params):
        fit = F.cross_entropy(
            F.linear(inputs, params["a"].reshape(4, 2).repeat(1, 2)[:, :3], params["b"]), targets
        )
        return fit + 0.05 * tree.sq_norm(params)

    return loss


def derivatives(loss):
    """The gradient as a function, and the Hessian's products as one."""

    def product(at, vector):
        return torch.func.jvp(torch.func.grad(loss), (at,), (vector,))[1]

    return torch.func.grad(loss), product


def test_newton_steps_of_a_logistic_regression_are_those_of_its_hessian(logistic):
    gradient, product = derivatives(logistic)
    at = split(torch.randn(SIZE, dtype=torch.float64))
    hessian = torch.func.hessian(lambda vector: logistic(split(vector)))(flat(at))
    found = conjugate_gradients(partial(product, at), gradient(at), SIZE)
    expected = torch.linalg.solve(hessian, flat(gradient(at)))
    assert_close(flat(found), expected, rtol=1e-8, atol=1e-10)


def test_newtons_method_finds_the_minimum(logistic):
    """To the last digits, although the loss itself says nothing there any more."""
    gradient, product = derivatives(logistic)
    start = split(3 * torch.randn(SIZE, dtype=torch.float64))
    found = newton_minimum(logistic, gradient, product, start, 12, SIZE)
    assert tree.sq_norm(gradient(start)).sqrt() > 0.1
    assert tree.sq_norm(gradient(found)).sqrt() < 1e-13


def test_newtons_method_goes_down_where_the_function_is_not_convex():
    """Plain Newton steps would go to the saddle at 0."""

    def value(params):
        vector = flat(params)
        return (vector**4).sum() / 4 - (vector**2).sum() / 2

    gradient, product = derivatives(value)
    start = split(torch.linspace(0.05, 0.5, SIZE, dtype=torch.float64))
    heights = [value(newton_minimum(value, gradient, product, start, steps, 5)) for steps in range(12)]
    assert all(later < before for before, later in pairwise(heights[:6]))
    assert_close(heights[-1], torch.tensor(-SIZE / 4, dtype=torch.float64), rtol=1e-9, atol=0)


def test_clients_solve_with_products_over_all_their_batches(federation):
    """Ragged clients, a pass over the data for each product, in lanes and one after the other."""
    tiny = federation(nn.Sequential(nn.Flatten(), nn.Linear(72, 3)))
    jobs, task = tiny.cohort.jobs, tiny.task

    def act(client, model):
        gradient = client.grad(model).params
        hessian = damped(partial(client.hvp, model), 0.5)
        return {
            "gradients": conjugate_gradients(hessian, gradient, 40),
            "richardson": richardson(hessian, gradient, 0.01, 8),
            "loss": {"mean": client.loss(model)},
        }

    lanes, alone = (tiny.run(one, act).uploads for one in (tiny.batched(lanes=2), tiny.sequential()))
    assert_close(lanes, alone, rtol=1e-9, atol=1e-12)
    params = tiny.start["params"]
    for row, job in enumerate(jobs):
        batch = tiny.pool.batch(
            torch.as_tensor(job.shard), torch.ones(len(job.shard), dtype=torch.float64), torch.tensor(0)
        )

        def loss(vector, batch=batch):
            model = {"params": tree.divided(vector, params), "buffers": {}}
            prediction = task.forward(model, batch, training=True).prediction
            return F.cross_entropy(prediction, batch.targets)

        vector = flat(params)
        gradient, hessian = torch.func.grad(loss)(vector), torch.func.hessian(loss)(vector)
        matrix = hessian + 0.5 * torch.eye(len(vector), dtype=torch.float64)
        step = torch.linalg.solve(matrix, gradient)
        found = {group: flat(tensors) for group, tensors in tree.index(alone, row).items()}
        assert_close(found["gradients"], step, rtol=1e-6, atol=1e-9)
        powers = torch.linalg.matrix_power(torch.eye(len(vector), dtype=torch.float64) - 0.01 * matrix, 8)
        assert_close(found["richardson"], step - powers @ step, rtol=1e-8, atol=1e-11)
        assert_close(alone["loss"]["mean"][row], loss(vector), rtol=1e-12, atol=0)


def test_products_and_solutions_are_those_of_curvlinops(federation):
    import curvlinops

    tiny = federation("mlp", sizes=(30,))
    (job,) = tiny.cohort.jobs
    rows = torch.as_tensor(job.shard)
    batch = tiny.pool.batch(rows, torch.ones(len(rows), dtype=torch.float64), torch.tensor(0))
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    module.load_state_dict(tiny.start["params"])
    hessian = curvlinops.HessianLinearOperator(
        module, nn.CrossEntropyLoss(), list(module.parameters()), [(batch.inputs, batch.targets)]
    )
    vector = torch.randn(hessian.shape[0], dtype=torch.float64)

    def act(client, model):
        given, product = tree.divided(vector, model["params"]), partial(client.hvp, model)
        return {
            "product": product(given),
            "solved": conjugate_gradients(damped(product, 3.0), given, 60),
            "series": richardson(product, given, 0.05, 7),
        }

    uploads = tree.index(tiny.run(tiny.batched(), act).uploads, 0)
    found = {group: flat(params) for group, params in uploads.items()}
    assert_close(found["product"], hessian @ vector, rtol=1e-9, atol=1e-11)
    assert_close(hessian @ found["solved"] + 3.0 * found["solved"], vector, rtol=1e-9, atol=1e-11)
    series = curvlinops.NeumannInverseLinearOperator(hessian, num_terms=6, scale=0.05)
    assert_close(found["series"], series @ vector, rtol=1e-9, atol=1e-11)
