"""Methods, settings and swept numbers side by side: each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from consilience.config.config import Config
from consilience.experiment import Result, plan
from consilience.experiment import execution as experiment


def test_methods_see_the_same_partitions_starts_and_batches(
    configure: Callable[..., Config], weights: Callable[[Result, str], torch.Tensor]
):
    """Without a pull or with a useless rule, methods compared side by side are FedAvg to the last bit."""
    same = {"name": "fedprox", "mu": 0.0}
    result = experiment.run(configure(method=["fedavg", same], seeds=[0, 1], participation=2))
    assert torch.equal(weights(result, "star fedavg"), weights(result, "star fedprox mu=0.0"))


def test_partitions_are_shared_between_methods_and_settings(configure: Callable[..., Config]):
    config = configure(
        method=["fedavg", "swa"], compare=[{"rounds": 1}, {"rounds": 2}, {"partition": "shards"}]
    )
    first, *rest = (arm.scene.partitions for arm in plan(config))
    assert [part is first for part in rest] == [True, True, True, False, False]


def test_settings_are_compared_side_by_side(configure: Callable[..., Config]):
    config = configure(
        seeds=[0, 1],
        compare=[
            {"label": "server", "method": ["fedavg", "hwa"]},
            {"label": "graph", "topology": "ring", "method": ["dechetero"], "rounds": 2},
        ],
    )
    result = experiment.run(config)
    found = {(r["setting"], r["method"], r["seed"], r["round"]) for r in result.records}
    assert found == {
        *(("server", m, s, n) for m in ("fedavg", "hwa") for s in (0, 1) for n in (1, 2, 3)),
        *(("graph", "dechetero", s, n) for s in (0, 1) for n in (1, 2)),
    }
    assert [(one.setting, one.method) for one in result.summaries] == [
        ("server", "fedavg"),
        ("server", "hwa"),
        ("graph", "dechetero"),
    ]
    assert list(result.models) == ["server fedavg", "server hwa", "graph dechetero"]


SWEPT = [
    ("fedsgd", "lr"),
    ("fedprox", "mu"),
    ("fedcurv", "strength"),
    ("fedcurv", "stiffness"),
    ("scaffold", "server_lr"),
    ("fagh", "rho"),
    ("fagh", "beta1"),
    ("dechw", "beta"),
    ("dechw*", "beta"),
]
VALUES = (0.25, 0.75)


@pytest.mark.parametrize(("name", "option"), SWEPT)
def test_a_sweep_of_a_method_is_its_separate_runs(
    name: str,
    option: str,
    configure: Callable[..., Config],
    column: Callable[..., list[Any]],
    weights: Callable[[Result, str], torch.Tensor],
):
    entry = {"name": name, option: list(VALUES), "label": name}
    swept = experiment.run(configure(method=entry, seeds=[0, 3], dtype="float64"))
    finals = []
    for value in VALUES:
        label = f"{name} {option}={value}"
        alone = experiment.run(
            configure(method={"name": name, option: value, "label": label}, seeds=[0, 3], dtype="float64")
        )
        for key in ("test_accuracy", "test_loss", "train_loss"):
            assert column(swept, key, label) == pytest.approx(column(alone, key, label), abs=1e-6)
        finals.append(weights(alone, f"star {label}"))
    assert torch.allclose(weights(swept, f"star {name}"), torch.cat(finals), atol=1e-9)
    assert not torch.allclose(*finals, atol=1e-9)


@pytest.mark.parametrize(
    ("solver", "option"),
    [
        ("sgd", "lr"),
        ("sgd", "momentum"),
        ("sgd", "weight_decay"),
        ("adam", "lr"),
        ("adam", "beta2"),
        ("adamw", "weight_decay"),
        ("rmsprop", "alpha"),
        ("nesterov", "momentum"),
    ],
)
def test_a_sweep_of_the_solver_is_its_separate_runs(
    solver: str, option: str, configure: Callable[..., Config], column: Callable[..., list[Any]]
):
    swept = experiment.run(configure(solver={"name": solver, option: list(VALUES)}, seeds=[0, 3]))
    assert set(column(swept, "method")) == {f"fedavg {option}={value}" for value in VALUES}
    for value in VALUES:
        alone = experiment.run(configure(solver={"name": solver, option: value}, seeds=[0, 3]))
        for key in ("test_accuracy", "test_loss", "train_loss"):
            expected = pytest.approx(column(alone, key), rel=1e-5, abs=1e-6)
            assert column(swept, key, f"fedavg {option}={value}") == expected


def test_a_sweep_of_method_and_solver_is_their_grid(
    configure: Callable[..., Config], column: Callable[..., list[Any]]
):
    config = configure(
        method=[{"name": "fedprox", "mu": [0.1, 2]}, "swa"],
        solver={"name": "sgd", "lr": [0.1, 0.3]},
        rounds=1,
    )
    assert list(dict.fromkeys(column(experiment.run(config), "method"))) == [
        "fedprox mu=0.1 lr=0.1",
        "fedprox mu=0.1 lr=0.3",
        "fedprox mu=2 lr=0.1",
        "fedprox mu=2 lr=0.3",
        "swa lr=0.1",
        "swa lr=0.3",
    ]


def test_speed_is_a_variants_share_of_the_time(configure: Callable[..., Config]):
    swept = experiment.run(configure(method={"name": "fedprox", "mu": [0.1, 0.2, 0.4]}, rounds=1))
    assert len({record["seconds"] for record in swept.records}) == 1
    assert repr(swept).startswith("Result(star fedprox mu=0.1: ")
