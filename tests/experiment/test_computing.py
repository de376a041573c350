"""What a run computes: the same every time, with whoever takes part and whoever fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from consilience import tree
from consilience.algorithms.fedcurv import FedCurv
from consilience.config.config import Config
from consilience.engine.build import simulate
from consilience.experiment import Result, plan
from consilience.experiment import execution as experiment
from consilience.learning.solvers import SGD, SOLVERS

Records = list[dict[str, Any]]


def test_the_same_run_gives_the_same_digest(configure: Callable[..., Config]):
    config = configure(
        method=["fedavg", "scaffold", "local"], participation=0.5, failure_rate=0.3, seeds=[0, 1]
    )
    digests = {experiment.run(config).digest for _ in range(3)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [1]},
        {"rounds": 2},
        {"solver": {"name": "sgd", "lr": 0.2}},
        {"method": {"name": "fedavg", "label": "x"}},
    ],
    ids=["seeds", "rounds", "solver", "label"],
)
def test_another_run_gives_another_digest(changes: dict[str, Any], configure: Callable[..., Config]):
    assert experiment.run(configure(**changes)).digest != experiment.run(configure()).digest


@pytest.mark.parametrize(
    "changes",
    [{"lanes": 1}, {"lanes": 3}, {"executor": "sequential"}],
    ids=["one lane", "three", "sequential"],
)
def test_how_it_is_computed_does_not_matter(
    changes: dict[str, Any], configure: Callable[..., Config], column: Callable[..., list[Any]]
):
    setting = {"method": ["hwa", "scaffold"], "seeds": [0, 1], "clients": 5, "participation": 4}
    usual, other = (experiment.run(configure(**setting, **change)) for change in ({}, changes))
    assert column(other, "test_accuracy") == pytest.approx(column(usual, "test_accuracy"), abs=1e-3)
    assert column(other, "test_loss") == pytest.approx(column(usual, "test_loss"), rel=1e-4)
    assert column(other, "bytes_up") == column(usual, "bytes_up")


def test_every_solver_runs(configure: Callable[..., Config]):
    for solver in SOLVERS:
        assert experiment.run(configure(solver=solver, rounds=1)).accuracy is not None


def test_a_composed_method_runs(configure: Callable[..., Config], column: Callable[..., list[Any]]):
    composed = {"objective": {"name": "proximal", "mu": [0.1, 3]}, "rule": "hessian_weighted"}
    result = experiment.run(configure(method=[composed, "hwa"], rounds=2))
    names = ["proximal+hessian_weighted mu=0.1", "proximal+hessian_weighted mu=3", "hwa"]
    assert list(dict.fromkeys(column(result, "method"))) == names
    # The evidence is the output layer's curvature in both.
    assert column(result, "bytes_up", names[0]) == column(result, "bytes_up", "hwa")


def test_aliases_differ_in_how_models_start(
    configure: Callable[..., Config],
    column: Callable[..., list[Any]],
    weights: Callable[[Result, str], torch.Tensor],
):
    config = configure(method=["dechetero", "dechomo"], topology="ring", local={"steps": 1, "batch_size": 4})
    inits = [arm.scene.init for arm in plan(config)]
    assert inits == ["different", "common"]
    frozen = configure(
        method=["dechetero", "dechomo"], topology="ring", solver={"name": "sgd", "lr": 0.0}, rounds=1
    )
    result = experiment.run(frozen)
    spread = {name: column(result, "accuracy_std", name)[0] for name in ("dechetero", "dechomo")}
    assert spread["dechomo"] == 0
    apart = weights(result, "ring dechetero").std(0).max(), weights(result, "ring dechomo").std(0).max()
    assert apart[0] > 0.01 > apart[1]


@pytest.mark.parametrize(
    ("changes", "init"),
    [
        ({}, "common"),
        ({"topology": "ring"}, "different"),
        ({"topology": "ring", "init": "common"}, "common"),
        ({"init": "different", "method": "local"}, "different"),
        ({"topology": "ring", "init": "different", "method": "dechetero"}, "different"),
    ],
)
def test_how_models_start(changes: dict[str, Any], init: str, configure: Callable[..., Config]):
    (arm,) = plan(configure(**changes))
    assert arm.scene.init == init


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"), [(4, 2, {2, 4}), (3, 2, {2, 3}), (3, 9, {3}), (2, 1, {1, 2})]
)
def test_evaluation_every_few_rounds(
    rounds: int, every: int, evaluated: set[int], configure: Callable[..., Config]
):
    result = experiment.run(configure(rounds=rounds, evaluate={"every": every, "clients": False}))
    assert {r["round"] for r in result.records if "test_accuracy" in r} == evaluated
    assert len(result.records) == rounds
    assert all("train_loss" in record for record in result.records)
    assert result.clients == []


def test_count_and_fraction_of_clients_are_the_same(
    configure: Callable[..., Config], timeless: Callable[[Records], Records], column: Callable[..., list[Any]]
):
    everybody, count, fraction = (
        experiment.run(configure(participation=participation)) for participation in (1.0, 2, 0.5)
    )
    assert timeless(count.records) == timeless(fraction.records)
    for key in ("bytes_up", "bytes_down", "samples"):
        assert [2 * value for value in column(count, key)] == column(everybody, key)


def test_failing_clients_are_named_and_the_run_goes_on(
    configure: Callable[..., Config], column: Callable[..., list[Any]]
):
    result = experiment.run(configure(failure_rate=0.3, rounds=4, seeds=[0, 1, 2]))
    per_client = column(experiment.run(configure(rounds=1)), "bytes_up")[0] // 4
    dropped = column(result, "dropped")
    assert {len(names) for names in dropped} > {0}
    names = {f"client {number} (upload lost)" for number in range(4)}
    assert {name for some in dropped for name in some} <= names
    for record in result.records:
        assert record["bytes_up"] == (4 - len(record["dropped"])) * per_client
        assert record["bytes_down"] == 4 * per_client
    assert result.summaries[0].dropped == sum(map(len, dropped))
    assert result.summaries[0].rounds == 4


@pytest.mark.parametrize("topology", ["star", "ring"])
def test_when_everybody_fails_nothing_is_learnt_from_others(
    topology: str,
    configure: Callable[..., Config],
    column: Callable[..., list[Any]],
    weights: Callable[[Result, str], torch.Tensor],
):
    result = experiment.run(configure(failure_rate=1.0, topology=topology, init="common", seeds=[0, 1]))
    assert all(len(names) == 4 for names in column(result, "dropped"))
    assert set(column(result, "bytes_up")) == {0}
    if topology == "star":
        untrained = experiment.run(configure(solver={"name": "sgd", "lr": 0.0}, rounds=1, seeds=[0, 1]))
        assert torch.equal(weights(result, "star fedavg"), weights(untrained, "star fedavg"))
        assert column(result, "train_loss") == [None] * 6
    else:
        alone = experiment.run(configure(method="local", seeds=[0, 1]))
        assert torch.allclose(weights(result, "ring fedavg"), weights(alone, "star local"), atol=1e-6)


def test_a_personal_model_is_trained_even_if_nothing_arrives(configure: Callable[..., Config]):
    with_failures = experiment.run(configure(method="local", failure_rate=1.0, rounds=2))
    without = experiment.run(configure(method="local", rounds=2))
    assert with_failures.accuracy == without.accuracy
    assert with_failures.records[-1]["dropped"]


def test_a_batch_is_never_larger_than_the_largest_client(configure: Callable[..., Config]):
    huge = experiment.run(configure(local={"epochs": 1, "batch_size": 10**12}, rounds=1))
    assert huge.records[-1]["samples"] > 0


def test_fedcurv_does_not_grow(configure: Callable[..., Config]):
    (arm,) = plan(configure(method="fedcurv"))
    simulation = simulate(arm.scene, [(FedCurv(), SGD(lr=0.01))])
    sizes = set()
    for _ in range(200):
        simulation.step(evaluate=False)
        sizes.add(tree.nbytes(simulation.snapshot()))
    assert len(sizes) == 1
