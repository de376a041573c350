"""Whole runs: what they compute and write, and that an interrupted one ends as if it had not been."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from consilience import tree
from consilience.algorithm import Conditions
from consilience.algorithms import METHODS
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.experiment import Listener, Result, plan, split
from consilience.experiment import execution as experiment
from consilience.experiment import folder as run_folder
from consilience.experiment.folder import CLIENTS, METRICS, RunFolder
from consilience.learning.solvers import SGD, SOLVERS

KEYS = {"test_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "seconds", "dropped"}


def blobs() -> Dataset:
    """Three classes of points in five dimensions, far enough apart to learn in a few steps."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(90) % 3
    centres = 2 * torch.randn(3, 5, generator=random)
    inputs = centres[targets] + torch.randn(90, 5, generator=random)
    return Dataset.from_arrays("blobs", inputs[:60], targets[:60], inputs[60:], targets[60:])


BLOBS = blobs()


def configure(**changes: Any) -> Config:
    """A tiny configuration."""
    values = {
        "data": BLOBS,
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 4,
        "rounds": 3,
        "local": {"steps": 2, "batch_size": 4},
        "solver": {"name": "sgd", "lr": 0.1},
    }
    return read_config({**values, **changes})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def column(result: Result, key: str, method: str | None = None) -> list[Any]:
    return [record.get(key) for record in result.records if method in (None, record["method"])]


def weights(result: Result, arm: str) -> torch.Tensor:
    """All parameters of an arm's models, a row a model."""
    params = result.models[arm]["params"].values()
    return torch.cat([value.flatten(1) for value in params], 1)


# What a run writes.


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Result]:
    config = configure(
        name="both",
        method=["fedavg", {"name": "fedprox", "mu": [0.01, 1]}],
        seeds=[0, 5],
        targets=[0.2, 0.99],
        checkpoint={"every": 2},
    )
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "both")
    return config, experiment.run(config, folder=folder)


def test_the_files_of_a_run(written: tuple[Config, Result]):
    _, result = written
    assert result.path is not None
    files = {str(path.relative_to(result.path)) for path in result.path.rglob("*") if path.is_file()}
    assert {file for file in files if not file.startswith((".", "models/"))} == {
        "config.yaml",
        "metrics.jsonl",
        "clients.jsonl",
        "summary.json",
        "accuracy.png",
        "checkpoint.safetensors",
        "partitions.json",
    }
    assert sum(file.startswith("models/") for file in files) == 2


def test_a_line_for_every_method_seed_and_round(written: tuple[Config, Result]):
    _, result = written
    assert result.path is not None
    records = lines(result.path / "metrics.jsonl")
    assert records == result.records
    found = [(record["method"], record["seed"], record["round"]) for record in records]
    methods = ["fedavg", "fedprox mu=0.01", "fedprox mu=1"]
    assert sorted(found) == [(m, seed, number) for m in methods for seed in (0, 5) for number in (1, 2, 3)]
    for record in records:
        assert record.keys() >= KEYS
        assert 0 <= record["test_accuracy"] <= 1
        assert record["test_loss"] > 0
        assert record["train_loss"] > 0
        assert record["seconds"] > 0
        assert record["dropped"] == []
        assert record["bytes_up"] == sum(record["traffic"]["up"].values()) > 0
        assert record["bytes_down"] == sum(record["traffic"]["down"].values()) > 0
        assert record["samples"] == 4 * 2 * 4  # clients, steps, batch


def test_the_summary(written: tuple[Config, Result]):
    _, result = written
    assert result.path is not None
    summary = json.loads((result.path / "summary.json").read_text())
    assert (summary["name"], summary["digest"]) == ("both", result.digest)
    assert [method["method"] for method in summary["methods"]] == [
        "fedavg",
        "fedprox mu=0.01",
        "fedprox mu=1",
    ]
    for method in summary["methods"]:
        own = [record for record in result.records if record["method"] == method["method"]]
        last = [record["test_accuracy"] for record in own if record["round"] == 3]
        best = [max(r["test_accuracy"] for r in own if r["seed"] == seed) for seed in (0, 5)]
        assert method["final_accuracy"] == pytest.approx({"mean": np.mean(last), "std": np.std(last, ddof=1)})
        assert method["best_accuracy"] == pytest.approx({"mean": np.mean(best), "std": np.std(best, ddof=1)})
        assert method["rounds_to"].keys() == {"0.2", "0.99"}
        assert method["bytes_up"] == sum(r["bytes_up"] for r in own if r["seed"] == 0)
        assert method["bytes_down"] == sum(r["bytes_down"] for r in own if r["seed"] == 0)
        assert method["samples_per_s"] > 0
    assert summary["environment"].keys() >= {"consilience", "torch", "device"}
    assert result.accuracy == summary["methods"][0]["final_accuracy"]["mean"]


def test_every_client_is_listed_at_the_end(written: tuple[Config, Result]):
    _, result = written
    assert result.path is not None
    clients = lines(result.path / "clients.jsonl")
    assert clients == result.clients
    methods = ["fedavg", "fedprox mu=0.01", "fedprox mu=1"]
    assert sorted((line["method"], line["seed"], line["client"]) for line in clients) == [
        (method, seed, client) for method in methods for seed in (0, 5) for client in range(4)
    ]
    assert all(0 <= line["own_accuracy"] <= 1 and line["samples"] == 15 for line in clients)


def test_the_plot_is_a_picture(written: tuple[Config, Result]):
    _, result = written
    assert result.path is not None
    with Image.open(result.path / "accuracy.png") as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    assert min(pixels.shape[:2]) >= 300
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({"topology": "ring", "method": ["dechetero", "dechw"], "seeds": [3, 1]}, True),
        ({"compare": [{"topology": "star"}, {"topology": "ring"}]}, True),
        ({"topology": {"name": "erdos_renyi", "p": 0.6}, "network": {"redraw_every": 1}}, True),
        ({"topology": "ring", "evaluate": {"nodes": False}}, False),
        ({"topology": "star"}, False),
    ],
    ids=["graph", "both", "redrawn", "unlisted", "star"],
)
def test_the_nodes_of_a_graph_are_drawn(changes: dict[str, Any], there: bool, tmp_path: Path):
    experiment.run(configure(rounds=2, **changes), folder=RunFolder(tmp_path))
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"accuracy.png", *(["nodes.png", "map.png"] if there else [])}
    if there:
        experiment.run(configure(rounds=1), folder=RunFolder(tmp_path), existing="overwrite")
        assert {path.name for path in tmp_path.glob("*.png")} == {"accuracy.png"}


@pytest.mark.parametrize(("method", "there"), [(["dechetero", "dechw"], True), ("dechetero", False)])
def test_coordinates_are_drawn_where_curvature_is_sent(method: Any, there: bool, tmp_path: Path):
    chosen = {"coordinates": ["head.bias[2]", "body.1.weight[3, 4]"]}
    config = configure(rounds=2, topology="ring", method=method, evaluate=chosen)
    experiment.run(config, folder=RunFolder(tmp_path))
    assert (tmp_path / "coordinates.png").exists() is there


def test_the_map_is_of_the_graph_of_the_first_seed_in_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Any] = []
    monkeypatch.setattr(experiment, "map_plot", lambda records, peers, path, title: seen.append(peers))
    config = configure(
        clients=8,
        rounds=3,
        seeds=[3, 1],
        topology={"name": "erdos_renyi", "p": 0.5},
        network={"redraw_every": 2},
    )
    experiment.run(config, folder=RunFolder(tmp_path))
    (peers,) = seen[0].values()
    (arm,) = plan(config)
    simulation = simulate(arm.scene, arm.variants)
    graphs = [simulation.world.adjacency(0, number) for number in range(3)]
    assert (peers.seed, sum(peers.sizes)) == (3, 60)
    assert np.array_equal(peers.adjacency, graphs[2])
    assert not np.array_equal(peers.adjacency, graphs[1])


def test_the_partitions_are_on_record(written: tuple[Config, Result]):
    config, result = written
    assert result.path is not None
    manifests = json.loads((result.path / "partitions.json").read_text())
    parts = split(config, BLOBS)
    seeds = {str(seed): parts[seed].manifest() for seed in (0, 5)}
    assert manifests == {"star": {"data": BLOBS.digest(), "seeds": seeds}}


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    config = configure(rounds=3, checkpoint={"every": 1})
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=_Stop(2))
    other = Dataset.from_arrays(
        BLOBS.name, BLOBS.inputs + 1, BLOBS.targets, BLOBS.test_inputs, BLOBS.test_targets, classes=3
    )
    with pytest.raises(UserError, match="the data, their split or the graph are not those of"):
        experiment.run(read_config(config.written(), own=other), folder=folder, existing="resume")


def test_an_interrupted_run_can_go_on_at_once(tmp_path: Path):
    """Nothing of it holds the folder any more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # so that there are worker processes
    try:
        config = configure(rounds=3, checkpoint={"every": 1}, executor="batched")
        with pytest.raises(KeyboardInterrupt) as interrupt:
            experiment.run(config, folder=RunFolder(tmp_path / "run"), listener=_Stop(2))
        again = experiment.run(config, folder=RunFolder(tmp_path / "run"), existing="resume")
        assert len(again.records) == 3
        assert interrupt.value.__traceback__  # whose frames still know the run
    finally:
        torch.set_num_threads(threads)


def test_a_run_does_not_go_on_with_another_graph(tmp_path: Path):
    """The number of nodes stays the same."""
    drawn = tmp_path / "drawn.edges"
    drawn.write_text("0 1\n1 2\n2 3\n3 4\n")
    topology = {"name": "file", "path": str(drawn)}
    config = configure(method="dechetero", topology=topology, clients=5, rounds=3, checkpoint={"every": 1})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=_Stop(2))
    drawn.write_text("0 1\n1 2\n2 3\n3 4\n4 0\n")
    with pytest.raises(UserError, match="the data, their split or the graph are not those of"):
        experiment.run(config, folder=folder, existing="resume")


def test_the_resolved_configuration_runs_again(written: tuple[Config, Result]):
    config, result = written
    assert result.path is not None
    resolved = yaml.safe_load((result.path / "config.yaml").read_text())
    assert resolved == config.resolved().written()
    assert (resolved["device"], resolved["executor"]) == ("cpu", "batched")
    again = experiment.run(read_config(resolved, own=BLOBS))
    assert timeless(again.records) == timeless(result.records)
    assert again.digest == result.digest


def test_the_summary_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever waits for it finds everything else."""
    seen: list[str] = []
    monkeypatch.setattr(
        run_folder, "atomic_write", lambda path, data: (seen.append(path.name), path.write_bytes(data))
    )
    experiment.run(configure(rounds=1), folder=RunFolder(tmp_path / "run"))
    assert (seen[0], seen[-1]) == ("config.yaml", "summary.json")


# What a run computes.


def test_the_same_run_gives_the_same_digest():
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
def test_another_run_gives_another_digest(changes: dict[str, Any]):
    assert experiment.run(configure(**changes)).digest != experiment.run(configure()).digest


@pytest.mark.parametrize(
    "changes",
    [{"lanes": 1}, {"lanes": 3}, {"executor": "sequential"}],
    ids=["one lane", "three", "sequential"],
)
def test_how_it_is_computed_does_not_matter(changes: dict[str, Any]):
    setting = {"method": ["hwa", "scaffold"], "seeds": [0, 1], "clients": 5, "participation": 4}
    usual, other = (experiment.run(configure(**setting, **change)) for change in ({}, changes))
    assert column(other, "test_accuracy") == pytest.approx(column(usual, "test_accuracy"), abs=1e-3)
    assert column(other, "test_loss") == pytest.approx(column(usual, "test_loss"), rel=1e-4)
    assert column(other, "bytes_up") == column(usual, "bytes_up")


def test_methods_see_the_same_partitions_starts_and_batches():
    """Without a pull or with a useless rule, methods compared side by side are FedAvg to the last bit."""
    same = {"name": "fedprox", "mu": 0.0}
    result = experiment.run(configure(method=["fedavg", same], seeds=[0, 1], participation=2))
    assert torch.equal(weights(result, "star fedavg"), weights(result, "star fedprox mu=0.0"))


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
def test_a_sweep_of_a_method_is_its_separate_runs(name: str, option: str):
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
    [("sgd", "lr"), ("sgd", "momentum"), ("sgd", "weight_decay"), ("adam", "lr"), ("adam", "beta2")],
)
def test_a_sweep_of_the_solver_is_its_separate_runs(solver: str, option: str):
    swept = experiment.run(configure(solver={"name": solver, option: list(VALUES)}, seeds=[0, 3]))
    assert set(column(swept, "method")) == {f"fedavg {option}={value}" for value in VALUES}
    for value in VALUES:
        alone = experiment.run(configure(solver={"name": solver, option: value}, seeds=[0, 3]))
        for key in ("test_accuracy", "test_loss", "train_loss"):
            expected = pytest.approx(column(alone, key), rel=1e-5, abs=1e-6)
            assert column(swept, key, f"fedavg {option}={value}") == expected


def test_a_sweep_of_method_and_solver_is_their_grid():
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


def test_every_solver_runs():
    for solver in SOLVERS:
        assert experiment.run(configure(solver=solver, rounds=1)).accuracy is not None


def test_a_composed_method_runs():
    composed = {"objective": {"name": "proximal", "mu": [0.1, 3]}, "rule": "hessian_weighted"}
    result = experiment.run(configure(method=[composed, "hwa"], rounds=2))
    names = ["proximal+hessian_weighted mu=0.1", "proximal+hessian_weighted mu=3", "hwa"]
    assert list(dict.fromkeys(column(result, "method"))) == names
    # The evidence is the output layer's curvature in both.
    assert column(result, "bytes_up", names[0]) == column(result, "bytes_up", "hwa")


def test_aliases_differ_in_how_models_start():
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
def test_how_models_start(changes: dict[str, Any], init: str):
    (arm,) = plan(configure(**changes))
    assert arm.scene.init == init


def test_settings_are_compared_side_by_side():
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


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"), [(4, 2, {2, 4}), (3, 2, {2, 3}), (3, 9, {3}), (2, 1, {1, 2})]
)
def test_evaluation_every_few_rounds(rounds: int, every: int, evaluated: set[int]):
    result = experiment.run(configure(rounds=rounds, evaluate={"every": every, "clients": False}))
    assert {r["round"] for r in result.records if "test_accuracy" in r} == evaluated
    assert len(result.records) == rounds
    assert all("train_loss" in record for record in result.records)
    assert result.clients == []


def test_clients_that_are_not_evaluated_have_no_file(tmp_path: Path):
    experiment.run(configure(rounds=1, evaluate={"clients": False}), folder=RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run" / CLIENTS).exists()


def test_count_and_fraction_of_clients_are_the_same():
    everybody, count, fraction = (
        experiment.run(configure(participation=participation)) for participation in (1.0, 2, 0.5)
    )
    assert timeless(count.records) == timeless(fraction.records)
    for key in ("bytes_up", "bytes_down", "samples"):
        assert [2 * value for value in column(count, key)] == column(everybody, key)


def test_failing_clients_are_named_and_the_run_goes_on():
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
def test_when_everybody_fails_nothing_is_learnt_from_others(topology: str):
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


def test_fedcurv_does_not_grow():
    (arm,) = plan(configure(method="fedcurv"))
    simulation = simulate(arm.scene, [(FedCurv(), SGD(lr=0.01))])
    sizes = set()
    for _ in range(200):
        simulation.step(evaluate=False)
        sizes.add(tree.nbytes(simulation.snapshot()))
    assert len(sizes) == 1


# Everything that can be refused is refused before anything is written.

REFUSED = [
    ({"method": {"name": "fagh", "row_index": 10**6}}, "row_index 1000000 is outside the model's"),
    ({"method": {"name": "fedcurv", "stiffness": [None, 1.0]}}, "stiffness"),
    ({"method": ["fedavg", "scaffold"], "topology": "ring"}, "scaffold: .* not defined on a graph"),
    ({"compare": [{"rounds": 1}, {"method": "fedcurv", "topology": "ring"}]}, "fedcurv: .* not defined"),
    ({"method": {"name": "fedprox", "mu": [0.1, 0.1]}}, "mu"),
    ({"model": "lenet5"}, "model lenet5 needs images"),
    ({"clients": 61}, "61 clients cannot share 60 training rows"),
]


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_refusals_leave_nothing_behind(changes: dict[str, Any], line: str, tmp_path: Path):
    with pytest.raises(UserError, match=line):
        experiment.run(configure(**changes), folder=RunFolder(tmp_path / "out" / "run"))
    assert not (tmp_path / "out").exists()


def test_a_run_in_progress_cannot_be_overwritten(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    config = configure(rounds=1)
    experiment.run(config, folder=folder)
    before = (folder.path / METRICS).read_bytes()
    with folder.locked(), pytest.raises(UserError, match="another process is working on"):
        experiment.run(config, folder=folder, existing="overwrite")
    assert (folder.path / METRICS).read_bytes() == before


# Resuming.

FRAGILE = {
    # Both methods keep memories; not everybody takes part, so some memories exist and others do not.
    "method": ["scaffold", "fedcurv"],
    "clients": 3,
    "participation": 2,
    "failure_rate": 0.2,
    "seeds": [0, 1],
    "rounds": 4,
    "checkpoint": {"every": 2},
}
WRITES = 19
"""The configuration, the partitions, eight for each method, and the summary; the picture is left out."""


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


class _Killer:
    """Counts writes and dies in the middle of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deadly: int | None) -> None:
        self.count, self.deadly = 0, deadly
        self._write, self._append = run_folder.atomic_write, RunFolder.append

        def append(folder: RunFolder, name: str, some: list[dict[str, Any]]) -> None:
            self.append(folder, name, some)

        monkeypatch.setattr(run_folder, "atomic_write", self.atomic_write)
        monkeypatch.setattr(RunFolder, "append", append)
        monkeypatch.setattr(experiment, "score_plot", lambda records, metric, path, title: path.touch())

    def _dies(self) -> bool:
        self.count += 1
        return self.count == self.deadly

    def atomic_write(self, path: Path, data: bytes) -> None:
        if self._dies():
            path.with_name(path.name + ".tmp").write_bytes(data[: len(data) // 2])
            raise Killed
        self._write(path, data)

    def append(self, folder: RunFolder, name: str, some: list[dict[str, Any]]) -> None:
        if self._dies():
            text = "".join(run_folder.json_line(line) + "\n" for line in some)
            with (folder.path / name).open("a") as handle:
                handle.write(text[: 2 * len(text) // 3])
            raise Killed
        self._append(folder, name, some)


def harvest(path: Path) -> dict[str, Any]:
    """Everything a run leaves behind, but times."""
    files = {p.name: p.read_bytes() for p in sorted((path / "models").iterdir())}
    lists = {name: timeless(lines(path / name)) for name in (METRICS, CLIENTS)}
    names = sorted(str(p.relative_to(path)) for p in path.rglob("*"))
    return {
        "digest": json.loads((path / "summary.json").read_text())["digest"],
        "names": names,
        **files,
        **lists,
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        killer = _Killer(patch, None)
        experiment.run(configure(**FRAGILE), folder=RunFolder(path))
    assert killer.count == WRITES
    return harvest(path)


@pytest.mark.parametrize("deadly", range(1, WRITES + 1))
def test_killed_in_the_middle_of_any_write(
    deadly: int, undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = RunFolder(tmp_path / "run")
    config = configure(**FRAGILE)
    with monkeypatch.context() as patch:
        _Killer(patch, deadly)
        with pytest.raises(Killed):
            experiment.run(config, folder=folder)
    with monkeypatch.context() as patch:
        _Killer(patch, None)
        experiment.run(config, folder=folder, existing="resume")
    assert harvest(folder.path) == undisturbed


def test_killed_again_and_again(undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder(tmp_path / "run")
    config = configure(**FRAGILE)
    attempts = 0
    while not (folder.path / "summary.json").exists():
        attempts += 1
        with monkeypatch.context() as patch:
            _Killer(patch, 10)
            try:
                experiment.run(config, folder=folder, existing="resume")
            except Killed:
                continue
    assert attempts >= 3
    assert harvest(folder.path) == undisturbed


class _Disk:
    """A disk that has room for some more writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 0
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, handle: int) -> None:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        self._sync(handle)


def test_a_full_disk_loses_nothing(
    undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk fills up at several points; each time there is room again the run goes on."""
    folder = RunFolder(tmp_path / "run")
    config = configure(**FRAGILE)
    monkeypatch.setattr(experiment, "score_plot", lambda records, metric, path, title: path.touch())
    disk = _Disk(monkeypatch)
    for room in (0, 5, 9, 14):
        disk.room = room
        with pytest.raises((OSError, UserError), match="No space left on device"):
            experiment.run(config, folder=folder, existing="resume")
        folder.load_checkpoint()  # whole, or not there yet
    disk.room = 1000
    experiment.run(config, folder=folder, existing="resume")
    assert harvest(folder.path) == undisturbed


class _Stop(Listener):
    """Interrupts a run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(self, arm: experiment.Arm, lines: list[dict[str, Any]]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def setting(topology: str, *, unreliable: bool = False) -> Conditions:
    return Conditions(topology != "star", SGD(), epochs=1, holdout=True, unreliable=unreliable)


STAR_AND_GRAPH = [
    (name, topology)
    for topology in ("star", "ring")
    for name, method in METHODS.items()
    if method().refuse(setting(topology)) is None
] + [("dechetero", "ring")]


@pytest.mark.parametrize(("name", "topology"), STAR_AND_GRAPH)
def test_every_method_resumes_bit_by_bit(name: str, topology: str, tmp_path: Path):
    entry: dict[str, Any] = {"name": name}
    if name == "dechw*":
        entry |= {"until": 2, "mode": "freeze"}
    if name == "desa":
        entry |= {"ipc": 2, "iterations": 2, "width": 4}
    method = METHODS.get(name, FedAvg)()
    everybody = name == "dechw*" or method.refuse(setting(topology, unreliable=True))
    some = 1.0 if everybody else 3  # e.g. frozen curvature needs everybody
    config = configure(
        method=entry, topology=topology, rounds=4, participation=some, checkpoint={"every": 2}, seeds=[0, 1]
    )
    whole = experiment.run(config)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=_Stop(3))
    assert len(lines(folder.path / METRICS)) == 6
    resumed = experiment.run(config, folder=folder, existing="resume")
    assert timeless(resumed.records) == timeless(whole.records)
    assert resumed.clients == whole.clients
    (arm,) = whole.models
    before, after = tree.flatten(whole.models[arm]), tree.flatten(resumed.models[arm])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert resumed.digest == whole.digest


def test_a_model_with_batchnorm_and_dropout_resumes_bit_by_bit(tmp_path: Path):
    images = torch.randint(
        0, 256, (24, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    data = Dataset.from_arrays("noise", images[:16], torch.arange(16) % 2, images[16:], torch.arange(8) % 2)
    config = configure(
        data=data, model="fagh-cnn", clients=2, rounds=3, local={"steps": 1}, checkpoint={"every": 1}
    )
    whole = experiment.run(config)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=_Stop(2))
    assert experiment.run(config, folder=folder, existing="resume").digest == whole.digest


def test_a_complete_run_is_resumed_without_computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder(tmp_path / "run")
    config = configure(method=["fedavg", "local"])
    first = experiment.run(config, folder=folder)
    before = harvest(folder.path)
    monkeypatch.setattr(experiment, "simulate", None)
    for _ in range(2):
        again = experiment.run(config, folder=folder, existing="resume")
        assert (again.records, again.clients, again.digest) == (first.records, first.clients, first.digest)
        assert harvest(folder.path) == before


def test_a_sweep_of_one_resumes_under_its_label(tmp_path: Path):
    config = configure(method={"name": "fedprox", "mu": [0.5]}, rounds=4, checkpoint={"every": 2})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=_Stop(3))
    resolved = yaml.safe_load((folder.path / "config.yaml").read_text())
    resumed = experiment.run(read_config(resolved, own=BLOBS), folder=folder, existing="resume")
    assert len({record["method"] for record in resumed.records}) == 1


def test_resuming_needs_a_run(tmp_path: Path):
    with pytest.raises(UserError, match=r"does not hold a run: there is no config\.yaml"):
        experiment.resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_partitions_are_shared_between_methods_and_settings():
    config = configure(
        method=["fedavg", "swa"], compare=[{"rounds": 1}, {"rounds": 2}, {"partition": "shards"}]
    )
    first, *rest = (arm.scene.partitions for arm in plan(config))
    assert [part is first for part in rest] == [True, True, True, False, False]


def test_a_personal_model_is_trained_even_if_nothing_arrives():
    with_failures = experiment.run(configure(method="local", failure_rate=1.0, rounds=2))
    without = experiment.run(configure(method="local", rounds=2))
    assert with_failures.accuracy == without.accuracy
    assert with_failures.records[-1]["dropped"]


def test_a_batch_is_never_larger_than_the_largest_client():
    huge = experiment.run(configure(local={"epochs": 1, "batch_size": 10**12}, rounds=1))
    assert huge.records[-1]["samples"] > 0


def test_speed_is_a_variants_share_of_the_time():
    swept = experiment.run(configure(method={"name": "fedprox", "mu": [0.1, 0.2, 0.4]}, rounds=1))
    assert len({record["seconds"] for record in swept.records}) == 1
    assert repr(swept).startswith("Result(star fedprox mu=0.1: ")
