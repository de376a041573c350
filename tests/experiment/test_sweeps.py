"""Lists in place of numbers, as users write them: of methods, of training and of the setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

import consilience as cs
from consilience.client import Client
from consilience.config.config import Config
from consilience.data.partitioners import DirichletClass
from consilience.experiment import Result, plan
from consilience.experiment import execution as experiment
from consilience.experiment.folder import RunFolder
from consilience.learning.solvers import SGD
from consilience.types import State

Configure = Callable[..., Config]

SWEPT: list[tuple[str, dict[str, Any], str, bool]] = [
    # (what is swept, the two values as keys of a file, how they are called, whether they make settings)
    ("epochs", {"local": {"epochs": [1, 2]}}, "epochs", False),
    ("batches", {"local": {"steps": 2, "batch_size": [2, 5]}}, "batch_size", False),
    ("l2", {"l2": [0.0, 0.5]}, "l2", False),
    ("partition", {"partition": {"name": "dirichlet_class", "alpha": [0.2, 5.0]}}, "alpha", True),
    ("clients", {"clients": [3, 5]}, "clients", True),
    ("participation", {"participation": [0.5, 1.0]}, "participation", True),
]


def picked(value: Any, index: int) -> Any:
    """The configuration with one value of its list."""
    if isinstance(value, dict):
        return {key: picked(inner, index) for key, inner in value.items()}
    return value[index] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("values", "name", "settings"), [row[1:] for row in SWEPT], ids=[s[0] for s in SWEPT]
)
def test_each_value_is_its_separate_run(
    values: dict[str, Any],
    name: str,
    settings: bool,
    configure: Configure,
    column: Callable[..., list[Any]],
):
    swept = experiment.run(configure(rounds=2, **values))
    found = []
    for index in (0, 1):
        alone = experiment.run(configure(rounds=2, **picked(values, index)))
        (numbers,) = {record["swept"][name] for record in swept.records[2 * index : 2 * index + 2]}
        label = f"{name}={numbers}"
        assert [(one.setting, one.method) for one in swept.summaries][index] == (
            (f"star {label}", "fedavg") if settings else ("star", f"fedavg {label}")
        )
        own = [record for record in swept.records if record["swept"] == {name: numbers}]
        for key in ("test_loss", "train_loss"):
            assert [record[key] for record in own] == column(alone, key)
        found.append([record["test_loss"] for record in own])
    assert found[0] != found[1]


def test_everything_together_is_a_grid(configure: Configure):
    arms = plan(
        configure(
            method={"name": "fedprox", "mu": [0.1, 1]},
            solver={"name": "sgd", "lr": [0.1, 0.2]},
            local={"epochs": [1, 2], "batch_size": 4},
            clients=[3, 4],
        )
    )
    assert [arm.name for arm in arms] == [
        f"star clients={clients} fedprox epochs={epochs}" for clients in (3, 4) for epochs in (1, 2)
    ]
    # What can share a computation does: four variants an arm.
    assert arms[0].labels == tuple(
        f"fedprox mu={mu} lr={lr} epochs=1" for mu in (0.1, 1) for lr in (0.1, 0.2)
    )
    assert arms[3].swept(0) == {"clients": 4, "mu": 0.1, "lr": 0.1, "epochs": 2}


@dataclass(frozen=True)
class Shy(cs.SingleExchange):
    """A method of a user's own: clients go some part of the way."""

    name: ClassVar[str] = "shy"
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise cs.UserError(f"shy: share must be in (0, 1], not {self.share}")

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        trained = client.train(down).model
        params = {k: v + self.share * (trained["params"][k] - v) for k, v in down["params"].items()}
        return {**trained, "params": params}, memory


FROM_PYTHON = [
    (cs.FedProx(mu=[0.1, 1.0]), {}, ["fedprox mu=0.1", "fedprox mu=1.0"]),  # type: ignore[arg-type]
    (cs.FedProx(mu=np.array([0.5, 2.0])), {}, ["fedprox mu=0.5", "fedprox mu=2.0"]),  # type: ignore[arg-type]
    (cs.FedDyn(alpha=(0.1, 1.0)), {}, ["feddyn alpha=0.1", "feddyn alpha=1.0"]),  # type: ignore[arg-type]
    (
        cs.Composed(objective=cs.Proximal(mu=[0.1, 1.0])),  # type: ignore[arg-type]
        {},
        ["proximal+by_data+replace mu=0.1", "proximal+by_data+replace mu=1.0"],
    ),
    (
        cs.Noised(sigma=[0.1, 0.2])(cs.FedAvg()),  # type: ignore[arg-type]
        {},
        ["fedavg noised sigma=0.1", "fedavg noised sigma=0.2"],
    ),
    (Shy(share=[0.5, 1.0]), {}, ["shy share=0.5", "shy share=1.0"]),  # type: ignore[arg-type]
    ("fedavg", {"solver": SGD(lr=[0.1, 0.2])}, ["fedavg lr=0.1", "fedavg lr=0.2"]),  # type: ignore[arg-type]
    ("fedavg", {"local": {"epochs": (1, 2)}}, ["fedavg epochs=1", "fedavg epochs=2"]),
]


@pytest.mark.parametrize(("method", "settings", "labels"), FROM_PYTHON)
def test_a_sweep_from_python(method: Any, settings: dict[str, Any], labels: list[str], configure: Configure):
    result = experiment.run(configure(method=method, rounds=1, **settings))
    assert [one.method for one in result.summaries] == labels
    assert len({record["test_loss"] for record in result.records}) == len(labels)


def test_a_partition_from_python(configure: Configure):
    (_, settings) = zip(*configure(partition=DirichletClass(alpha=[0.1, 5.0])).settings(), strict=True)  # type: ignore[arg-type]
    assert [one.partition for one in settings] == [DirichletClass(alpha=0.1), DirichletClass(alpha=5.0)]


REFUSED = [
    ({"method": Shy(share=[0.5, 2.0])}, "shy: share must be in"),  # type: ignore[arg-type]
    ({"method": cs.FedProx(mu=[0.5, -2.0])}, "mu must be at least 0, not -2.0"),  # type: ignore[arg-type]
    ({"local": {"epochs": [1, 0]}}, "epochs=0: local.epochs: Input should be greater than or equal to 1"),
    ({"local": {"epochs": []}}, "epochs: the list of values is empty"),
    ({"clients": [3, 3]}, "clients: .* names a value twice"),
    ({"clients": [3, "few"]}, "clients: a list here is a sweep over numbers"),
    ({"participation": [0.5, 9]}, "participation 9 is more than the 4 clients"),
    ({"rounds": [3, 4]}, "rounds: "),
    ({"numbers": {}}, "unknown key 'numbers'"),
]


@pytest.mark.parametrize(("values", "line"), REFUSED)
def test_sweeps_that_are_refused(values: dict[str, Any], line: str, configure: Configure):
    with pytest.raises(cs.UserError, match=line):
        plan(configure(**values))


UNUSED = [
    ("fagh", {"solver": {"name": "sgd", "lr": [0.1, 0.2]}}, ["fagh lr=any"]),
    ("fagh", {"local": {"epochs": [1, 2]}}, ["fagh epochs=any"]),
    (
        {"name": "fedsgd", "lr": [0.1, 0.2]},
        {"solver": SGD(lr=[1, 2])},
        [  # type: ignore[arg-type]
            "fedsgd lr=0.1 solver.lr=any",
            "fedsgd lr=0.2 solver.lr=any",
        ],
    ),
    ("giant", {"solver": {"name": "sgd", "lr": [0.1, 0.2]}}, ["giant lr=any"]),
    ("fedavg", {"solver": {"name": "sgd", "lr": [0.1, 0.2]}}, ["fedavg lr=0.1", "fedavg lr=0.2"]),
    ("fedsso", {"solver": {"name": "sgd", "lr": [0.1, 0.2]}}, ["fedsso lr=0.1", "fedsso lr=0.2"]),
    (
        {"name": "fagh", "then": {"method": "fedavg", "after": 2}},
        {"solver": {"name": "sgd", "lr": [0.1, 0.2]}},
        ["fagh then fedavg lr=0.1", "fagh then fedavg lr=0.2"],
    ),
]


@pytest.mark.parametrize(("method", "values", "labels"), UNUSED)
def test_what_a_method_does_not_use_is_not_trained_again(
    method: Any, values: dict[str, Any], labels: list[str], configure: Configure
):
    arms = plan(configure(method=method, **values))
    assert [label for arm in arms for label in arm.labels] == labels


def test_the_record_says_that_it_holds_for_all_values(configure: Configure):
    config = configure(method=["fagh", "fedavg"], solver={"name": "sgd", "lr": [0.1, 0.2]}, rounds=1)
    result = experiment.run(config)
    assert [record["swept"] for record in result.records] == [{"lr": "any"}, {"lr": 0.1}, {"lr": 0.2}]


def test_a_swept_run_is_resumed_from_its_folder(tmp_path: Path):
    settings: dict[str, Any] = {
        "data": "mnist-sample",
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 1,
        "local": {"steps": [1, 2], "batch_size": 8},
        "clients": [2, 3],
    }
    first: Result = cs.run(cs.FedProx(mu=[0.1, 1.0]), out=tmp_path, **settings)  # type: ignore[arg-type]
    resumed = cs.resume(tmp_path / "run")
    assert (resumed.digest, resumed.records) == (first.digest, first.records)


def test_the_configuration_of_a_comparison_is_resolved(configure: Configure, tmp_path: Path):
    """Every setting of config.yaml stands for itself, with every default."""
    compare = [{"label": "server", "method": "hwa"}, {"topology": "ring", "rounds": 1}]
    config = configure(data="mnist-sample", rounds=1, compare=compare, clients=None)
    folder = RunFolder(tmp_path)
    experiment.run(config, folder=folder)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    server, ring = written["compare"]
    assert (server["label"], ring["label"]) == ("server", "ring")
    assert server["method"][0]["layers"] == "output"
    assert ring["topology"] == {"name": "ring", "nodes": None, "allow_disconnected": False}
    for one in (server, ring):
        assert one["clients"] == 10
        assert one["executor"] == "batched"
        assert one["local"]["batch_size"] == 4
        assert one["solver"]["momentum"] == 0.0
