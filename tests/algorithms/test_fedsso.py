"""FedSSO: section 7.7 of the algorithm reference, and what quasi-Newton methods promise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.fedsso import FedSSO, bfgs, dfp, two_loops
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.learning.solvers import SGD
from consilience.models import MLP

SIZE = 6
LR = 0.1


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def vector(random):
    return torch.randn(SIZE, generator=random, dtype=torch.float64)


def positive(random):
    """A positive definite matrix."""
    rows = torch.randn(2 * SIZE, SIZE, generator=random, dtype=torch.float64)
    return rows.T @ rows / SIZE


def textbook_bfgs(inverse, move, change, kappa):
    left = torch.eye(SIZE, dtype=torch.float64) - torch.outer(move, change) / kappa
    return left @ inverse @ left.T + torch.outer(move, move) / kappa


def test_dfp_and_bfgs_are_each_others_dual(random):
    """DFP's inverse is BFGS's with s and y in exchanged places: (D_dfp)^-1 = B_bfgs(y, s)."""
    start, hessian, move = positive(random), positive(random), vector(random)
    change = hessian @ move
    found = torch.linalg.inv(dfp(start, move, change, move @ change))
    assert_close(
        found, textbook_bfgs(torch.linalg.inv(start), change, move, move @ change), rtol=1e-9, atol=1e-10
    )


def test_bfgs_is_the_textbooks(random):
    start, move, change, kappa = positive(random), vector(random), vector(random), torch.tensor(0.3).double()
    assert_close(
        bfgs(start, move, change, kappa), textbook_bfgs(start, move, change, kappa), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("formula", [dfp, bfgs])
def test_the_secant_condition_holds(random, formula):
    start, move, hessian = positive(random), vector(random), positive(random)
    change = hessian @ move
    renewed = formula(start, move, change, move @ change)
    assert_close(renewed @ change, move, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("formula", [dfp, bfgs])
def test_the_matrix_stays_symmetric_and_positive(random, formula):
    learned = torch.eye(SIZE, dtype=torch.float64)
    for _ in range(20):
        move, change, hessian = vector(random), vector(random), positive(random)
        # Any kappa above 0 will do; many in a row that are not s'y let the matrix grow beyond all bounds.
        once = formula(positive(random), move, change, torch.tensor(0.3).double())
        learned = formula(learned, move, hessian @ move, move @ hessian @ move)
        for inverse in (once, learned):
            assert_close(inverse, inverse.T, rtol=1e-12, atol=1e-12 * float(inverse.abs().max()))
            assert torch.linalg.eigvalsh(inverse).min() > 0


@pytest.mark.parametrize("formula", [dfp, bfgs])
@pytest.mark.parametrize(("kappa", "stays"), [(0.0, ("s", "y")), (-1.0, ())])
def test_a_pair_that_says_nothing_changes_nothing(random, formula, kappa, stays):
    start = positive(random)
    pair = [torch.zeros(SIZE).double() if name in stays else vector(random) for name in ("s", "y")]
    assert torch.equal(formula(start, *pair, torch.tensor(kappa).double()), start)


def test_two_loops_are_bfgs_from_a_scaled_identity(random):
    hessian = positive(random)
    moves = torch.stack([vector(random) for _ in range(3)])
    changes = moves @ hessian
    inverse = (moves[-1] @ changes[-1]) / (changes[-1] @ changes[-1]) * torch.eye(SIZE, dtype=torch.float64)
    for move, change in zip(moves, changes, strict=True):
        inverse = textbook_bfgs(inverse, move, change, move @ change)
    gradient = vector(random)
    assert_close(two_loops(moves, changes, gradient), inverse @ gradient, rtol=1e-11, atol=1e-12)
    blank = torch.zeros(2, SIZE, dtype=torch.float64)  # places that are not filled yet, in front
    padded = two_loops(torch.cat((blank, moves)), torch.cat((blank, changes)), gradient)
    assert_close(padded, inverse @ gradient, rtol=1e-11, atol=1e-12)
    assert torch.equal(two_loops(blank, blank, gradient), gradient)


@pytest.mark.parametrize("update", ["dfp", "bfgs", "lbfgs"])
def test_the_first_round_is_fedavgs(scene, play, update):
    method = FedSSO(update, server_lr=LR, scaled_start=False)
    averaged = play(scene(), FedAvg(), 1, SGD(LR)).hub["params"]
    assert_close(play(scene(), method, 1, SGD(LR)).hub["params"], averaged, rtol=1e-12, atol=1e-13)


def test_divided_by_the_steps_one_step_each_is_fedsgd(scene, play):
    where = scene(epochs=1, batch_size=100)
    first = FedSSO("bfgs", server_lr=0.3, per_step=True)
    assert_close(
        play(where, first, 1, SGD(LR)).hub["params"],
        play(where, FedSGD(0.3), 1).hub["params"],
        rtol=1e-10,
        atol=1e-12,
    )
    twice = replace(where, work=LocalWork(2, None, 100))
    pseudo, divided = (
        play(twice, FedSSO("bfgs", per_step=flag), 1, SGD(LR)).hub["quasi_newton"]["gradient"]
        for flag in (False, True)
    )
    assert_close(pseudo, 2 * divided, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("longest", [1e-6, 1.0])
def test_the_first_step_of_lbfgs_is_scaled(scene, play, longest):
    where, solver = scene(), SGD(LR)
    plain, scaled = (
        play(where, FedSSO(server_lr=longest, scaled_start=flag), 1, solver).hub for flag in (False, True)
    )
    gradient = scaled["quasi_newton"]["gradient"][0]
    start = scaled["quasi_newton"]["params"][0]
    share = min(1.0, 1 / float(gradient.abs().sum()))
    steps = [
        tree.concatenated({n: v[0] for n, v in hub["params"].items()}) - start for hub in (plain, scaled)
    ]
    assert share < 1
    assert_close(steps[1], share * steps[0], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("update", ["dfp", "bfgs"])
@pytest.mark.parametrize("bound", ["product", "quotient"])
def test_the_second_round_learns_from_moves_and_gradients(scene, play, update, bound):
    method = FedSSO(update, server_lr=LR, bound=bound, least=1e-12)
    before, after = (play(scene(), method, rounds, SGD(LR)).hub["quasi_newton"] for rounds in (1, 2))
    assert torch.equal(before["inverse"][0], torch.eye(len(before["inverse"][0]), dtype=torch.float64))
    move = 0.7 * (after["params"] - before["params"])[0]
    change = (after["gradient"] - before["gradient"])[0]
    formula = {"dfp": dfp, "bfgs": bfgs}[update]
    assert move @ change > 0
    expected = formula(before["inverse"][0], move, change, move @ change)
    assert_close(after["inverse"][0], expected, rtol=1e-10, atol=1e-11)
    assert_close(after["inverse"][0] @ change, move, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("bound", "limits", "believed"),
    [
        ("product", (1e-12, 1e12), True),
        ("product", (1e6, 1e12), False),
        ("quotient", (1e-12, 1e12), True),
        ("quotient", (1e-14, 1e-13), False),
    ],
)
def test_curvature_out_of_bounds_is_replaced(scene, play, bound, limits, believed):
    method = FedSSO("dfp", LR, 1.0, *limits, bound=bound)
    before, after = (play(scene(), method, rounds, SGD(LR)).hub["quasi_newton"] for rounds in (1, 2))
    move, change = ((after[name] - before[name])[0] for name in ("params", "gradient"))
    kappa = move @ change if believed else 2 * move @ move / sum(limits)
    expected = dfp(torch.eye(len(move), dtype=torch.float64), move, change, kappa)
    assert_close(after["inverse"][0], expected, rtol=1e-9, atol=1e-10)


def test_lbfgs_keeps_the_newest_pairs_that_have_curvature(scene, play):
    method = FedSSO(history=2, server_lr=0.1)
    states = [play(scene(), method, rounds, SGD(LR)).hub["quasi_newton"] for rounds in range(1, 6)]
    moves = [0.7 * (new["params"] - old["params"])[0] for old, new in pairwise(states)]
    changes = [(new["gradient"] - old["gradient"])[0] for old, new in pairwise(states)]
    kept = [k for k, (move, change) in enumerate(zip(moves, changes, strict=True)) if move @ change > 1e-10]
    assert len(kept) >= 3
    for name, made in (("moves", moves), ("changes", changes)):
        assert_close(states[-1][name][0], torch.stack([made[k] for k in kept[-2:]]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("update", ["dfp", "bfgs", "lbfgs"])
def test_with_exact_gradients_it_beats_gradient_descent(scene, play, update):
    """One full-batch step a round makes g the gradient; quasi-Newton then needs far fewer rounds."""
    where = scene(module="logistic", epochs=1, batch_size=100)
    options = {"sigma": 1.0, "bound": "quotient", "per_step": True, "server_lr": 0.5}
    ours = play(where, FedSSO(update, **options), 25, SGD(LR))
    plain = play(where, FedSGD(0.5), 25)
    loss = [mean_loss(where, simulation) for simulation in (ours, plain)]
    assert loss[0] < loss[1] - 0.02


def mean_loss(where, simulation):
    params = {name: value[0] for name, value in simulation.hub["params"].items()}
    inputs = where.dataset.inputs.double()
    logits = inputs @ params["weight"].T + params["bias"]
    return float(torch.nn.functional.cross_entropy(logits, where.dataset.targets))


def test_the_bytes_are_fedavgs_but_for_a_name(scene, play):
    sent, averaged = (play(scene(), method, 0).step(evaluate=False)[0] for method in (FedSSO(), FedAvg()))
    assert sent.bytes_up["gradient"] == averaged.bytes_up["params"]
    assert sent.bytes_up.keys() - {"header"} == {"gradient"}
    assert sent.bytes_down == averaged.bytes_down


def test_a_matrix_that_is_too_large_is_refused_in_a_line():
    module = MLP((10,)).build((1, 28, 28), 10)
    model = {"params": {name: value.detach() for name, value in module.named_parameters()}, "buffers": {}}
    with pytest.raises(UserError, match=r"matrix of 7,960 x 7,960 .* choose update lbfgs"):
        FedSSO("bfgs").init_hub(model)
    assert FedSSO().init_hub(model)["quasi_newton"]["moves"].shape == (10, 7960)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"server_lr": -1.0}, "server_lr must be at least 0"),
        ({"least": 2.0, "most": 1.0}, "least must be below most"),
        ({"history": 0}, "history must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, line):
    with pytest.raises(UserError, match=line):
        FedSSO(**options)
