"""FedProx: section 3.3 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedprox import FedProx
from consilience.errors import UserError
from consilience.learning.solvers import SGD
from consilience.objectives.base import Pass
from consilience.objectives.proximal import Proximal


@pytest.fixture
def quadratic():
    """Random H > 0, a and w of `F(v) = (v - a)' H (v - a) / 2`, started from w."""
    random = torch.Generator().manual_seed(0)
    root, a, w = (
        torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((5, 5), (5,), (5,))
    )
    return root @ root.T + 0.1 * torch.eye(5, dtype=torch.float64), a, w


def solve(quadratic, mu):
    """The exact minimiser of F plus the penalty: one Newton step, since both are quadratic."""
    hessian, a, w = quadratic
    context = Proximal(mu=mu).context(None, {"params": {"v": w}}, {})

    def total(v):
        penalty = Proximal(mu=mu).penalty(Pass(None, {"v": v}, None, None), context)
        return 0.5 * (v - a) @ hessian @ (v - a) + (0.0 if penalty is None else penalty)

    return w - torch.linalg.solve(torch.func.hessian(total)(w), torch.func.grad(total)(w))


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01)])
def test_without_a_pull_it_is_fedavg_bit_for_bit(scene, play, dtype, solver):
    where = scene(dtype=dtype)
    models = play(where, FedProx(mu=0.0), 3, solver).hub, play(where, FedAvg(), 3, solver).hub
    assert_close(*models, rtol=0, atol=0)


# 2
@pytest.mark.parametrize("mu", [0.0, 0.01, 1.0, 100.0])
def test_the_minimiser_on_a_quadratic_is_the_closed_form(quadratic, mu):
    hessian, a, w = quadratic
    expected = torch.linalg.solve(hessian + mu * torch.eye(5, dtype=torch.float64), hessian @ a + mu * w)
    assert_close(solve(quadratic, mu), expected, rtol=1e-10, atol=1e-10)


# 3
def test_a_stronger_pull_never_moves_the_minimiser_further_from_the_start(quadratic):
    moved = [(solve(quadratic, mu) - quadratic[2]).norm() for mu in (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.5 * moved[0]


@pytest.mark.parametrize("solver", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01)])
def test_the_pull_is_in_the_gradient_before_momentum_and_decay(scene, play, centralised, solver):
    alone = scene(sizes=(11,))
    trained = tree.index(play(alone, FedProx(mu=0.7), 3, solver).hub, 0)["params"]
    assert_close(trained, centralised(alone, 3, solver, mu=0.7), rtol=1e-12, atol=1e-14)


def test_trainable_parameters_alone_are_pulled():
    params, buffers = {"w": torch.ones(2)}, {"running_mean": torch.ones(2)}
    assert Proximal().context(None, {"params": params, "buffers": buffers}, {}) == {"anchor": params}


def test_bytes_are_those_of_fedavg(scene, play):
    records = [play(scene(), method, 0).step()[0] for method in (FedProx(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_down == records[1].bytes_down


def test_a_negative_pull_is_refused():
    with pytest.raises(UserError, match=r"mu must be at least 0, not -0\.1"):
        Proximal(mu=-0.1)
