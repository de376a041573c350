"""Solvers against torch's own optimisers."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience.errors import UserError
from consilience.learning.solvers import SGD, SOLVERS, Adam, AdamW, Nesterov, RMSprop

SGD_OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.5, "weight_decay": 0.01, "nesterov": True},
]
ADAM_OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.3},
    {"beta1": 0.0, "beta2": 0.0},
]
RMSPROP_OPTIONS = [
    {},
    {"weight_decay": 0.1, "alpha": 0.5},
    {"momentum": 0.9, "epsilon": 1e-3},
    {"momentum": 0.5, "centered": True, "weight_decay": 0.01},
]
TORCHS_NAMES = {"epsilon": "eps"}


def torchs(optimiser):
    """An optimiser of torch that takes the options of ours."""

    def make(params, *, beta1=0.9, beta2=0.999, **options):
        averages = {"betas": (beta1, beta2)} if optimiser in (torch.optim.Adam, torch.optim.AdamW) else {}
        named = {TORCHS_NAMES.get(name, name): value for name, value in options.items()}
        return optimiser(params, **averages, **named)

    return make


def torchs_nesterov(params, *, momentum=0.9, **options):
    return torch.optim.SGD(params, momentum=momentum, nesterov=True, **options)


CASES = [(SGD, torchs(torch.optim.SGD), options) for options in SGD_OPTIONS]
CASES += [(Nesterov, torchs_nesterov, options) for options in ({}, {"momentum": 0.5, "weight_decay": 0.1})]
CASES += [(Adam, torchs(torch.optim.Adam), options) for options in ADAM_OPTIONS]
CASES += [(AdamW, torchs(torch.optim.AdamW), options) for options in ADAM_OPTIONS]
CASES += [(RMSprop, torchs(torch.optim.RMSprop), options) for options in RMSPROP_OPTIONS]


@pytest.mark.parametrize("swept", [False, True], ids=["floats", "tensors"])
@pytest.mark.parametrize(("kind", "reference", "options"), CASES)
def test_five_steps_equal_torchs(kind, reference, options, swept):
    start = {"w": torch.randn(3, 2, dtype=torch.float64), "b": torch.randn(3, dtype=torch.float64)}
    target = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimiser = reference(target.values(), lr=0.05, **options)
    given = {"lr": 0.05, **options}
    if swept:  # a sweep has a tensor for every float
        given = {k: torch.tensor(v, dtype=torch.float64) if type(v) is float else v for k, v in given.items()}
    solver = kind(**given)
    params, state = start, solver.init(start)
    for _ in range(5):
        grads = {name: torch.randn_like(value) for name, value in start.items()}
        held = {name: value.clone() for name, value in params.items()}
        moved, state = solver.update(params, grads, state)
        assert_close(params, held, rtol=0, atol=0)  # nothing is written to the arguments
        params = moved
        for name, value in target.items():
            value.grad = grads[name]
        optimiser.step()
    assert_close(params, {name: value.detach() for name, value in target.items()}, rtol=1e-12, atol=1e-12)
    assert {group: list(held) for group, held in state.items()} == {
        group: list(held) for group, held in solver.init(start).items()
    }


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
@pytest.mark.parametrize(
    ("kind", "field"),
    [(SGD, "lr"), (SGD, "momentum"), (SGD, "weight_decay"), (Adam, "lr"), (Adam, "beta1"), (Adam, "epsilon")],
)
def test_negative_numbers_are_refused(kind, field, bad):
    with pytest.raises(UserError, match=rf"{field} must be at least 0, not {bad}"):
        kind(**{field: bad})


@pytest.mark.parametrize(("kind", "field"), [(SGD, "lr"), (SGD, "weight_decay"), (Adam, "beta1")])
def test_numbers_without_end_are_refused(kind, field):
    with pytest.raises(UserError, match=rf"{kind.name}: {field} must be finite, not inf"):
        kind(**{field: float("inf")})


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("betas", [(1.0, 0.9), (0.9, 1.0), (1.5, 0.9)])
def test_adam_refuses_averages_that_never_forget(kind, betas):
    line = f"solver {kind.name}: beta1 and beta2 must be below 1, not {betas[0]} and {betas[1]}"
    with pytest.raises(UserError, match=line):
        kind(0.1, *betas)


@pytest.mark.parametrize("given", [{"alpha": 1.0}, {"momentum": 1.0}])
def test_rmsprop_refuses_averages_that_never_forget(given):
    with pytest.raises(UserError, match="solver rmsprop: alpha and momentum must be below 1, not "):
        RMSprop(**given)


def test_a_variance_that_rounding_made_negative_is_none():
    solver = RMSprop(lr=0.1, centered=True, epsilon=1.0)
    mean = torch.tensor([1.0 + 2**-23])  # whose square is above the mean of squares
    state = {"square": {"w": torch.ones(1)}, "mean": {"w": mean}}
    params, _ = solver.update({"w": torch.zeros(1)}, {"w": torch.ones(1)}, state)
    assert_close(params["w"], torch.tensor([-0.1]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("momentum", [1.0, 1.5])
def test_momentum_that_never_fades_is_refused(momentum):
    with pytest.raises(UserError, match=f"momentum must be below 1, not {momentum}"):
        SGD(0.1, momentum=momentum)


@pytest.mark.parametrize("value", ["x", None])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(UserError, match="sgd: lr must be a number, not "):
        SGD(value)


@pytest.mark.parametrize("kind", [SGD, Nesterov])
def test_nesterov_needs_momentum(kind):
    with pytest.raises(UserError, match=f"solver {kind.name}: nesterov needs a momentum above 0"):
        kind(0.1, momentum=0.0, nesterov=True)


def test_nesterov_without_itself_is_refused():
    with pytest.raises(UserError, match="without nesterov it is sgd"):
        Nesterov(nesterov=False)


def test_solvers_are_listed_by_name():
    assert dict(SOLVERS) == {
        "sgd": SGD,
        "nesterov": Nesterov,
        "adam": Adam,
        "adamw": AdamW,
        "rmsprop": RMSprop,
    }


@pytest.mark.parametrize("kind", [SGD, Nesterov])
@pytest.mark.parametrize("of_grads", [torch.channels_last, torch.contiguous_format])
def test_a_step_in_place_is_the_step_however_parameters_lie(of_grads, kind):
    solver = kind(lr=0.1, momentum=0.9, weight_decay=0.01)
    weight, grad, velocity = (torch.randn(4, 3, 2, 2, dtype=torch.float64) for _ in range(3))
    params, state = solver.update({"w": weight}, {"w": grad}, {"velocity": {"w": velocity}})
    last = {"memory_format": torch.channels_last}
    moved, held = weight.clone(**last), {"velocity": {"w": velocity.clone(**last)}}
    solver.update_in_place({"w": moved}, {"w": grad.contiguous(memory_format=of_grads)}, held)
    assert_close(moved, params["w"])
    assert_close(held["velocity"]["w"], state["velocity"]["w"])
