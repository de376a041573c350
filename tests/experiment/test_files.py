"""What a run writes: metrics, summaries, clients, plots, partitions and its configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.experiment import Result, drawing, plan, split
from consilience.experiment import execution as experiment
from consilience.experiment import folder as run_folder
from consilience.experiment.folder import CLIENTS, METRICS, RunFolder

Records = list[dict[str, Any]]
KEYS = {"test_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "seconds", "dropped"}


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory, configure: Callable[..., Config]
) -> tuple[Config, Result]:
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
    assert {file for file in files if not file.startswith((".", "states/", "weights/"))} == {
        "config.yaml",
        "metrics.jsonl",
        "clients.jsonl",
        "summary.json",
        "accuracy.png",
        "sweep.png",
        "checkpoint.safetensors",
        "checkpoint.previous.safetensors",
        "partitions.json",
        "plan.json",
    }
    for folder, count in (("states/", 2), ("weights/", 6)):
        assert sum(file.startswith(folder) for file in files) == count


def test_a_line_for_every_method_seed_and_round(
    written: tuple[Config, Result], lines: Callable[[Path], Records]
):
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
    assert (summary["name"], summary["metric"], summary["digest"]) == ("both", "accuracy", result.digest)
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


def test_every_client_is_listed_at_the_end(written: tuple[Config, Result], lines: Callable[[Path], Records]):
    _, result = written
    assert result.path is not None
    clients = lines(result.path / "clients.jsonl")
    assert clients == result.clients
    methods = ["fedavg", "fedprox mu=0.01", "fedprox mu=1"]
    assert sorted((line["method"], line["seed"], line["client"]) for line in clients) == [
        (method, seed, client) for method in methods for seed in (0, 5) for client in range(4)
    ]
    assert all(0 <= line["train_accuracy"] <= 1 and line["samples"] == 15 for line in clients)


def test_clients_that_are_not_evaluated_have_no_file(tmp_path: Path, configure: Callable[..., Config]):
    experiment.run(configure(rounds=1, evaluate={"clients": False}), folder=RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run" / CLIENTS).exists()


def test_the_partitions_are_on_record(written: tuple[Config, Result], blobs: Dataset):
    config, result = written
    assert result.path is not None
    manifests = json.loads((result.path / "partitions.json").read_text())
    parts = split(config, blobs)
    seeds = {str(seed): parts[seed].manifest() for seed in (0, 5)}
    assert manifests == {"star": {"data": blobs.digest(), "seeds": seeds}}


def test_the_resolved_configuration_runs_again(
    written: tuple[Config, Result], timeless: Callable[[Records], Records], blobs: Dataset
):
    config, result = written
    assert result.path is not None
    resolved = yaml.safe_load((result.path / "config.yaml").read_text())
    assert resolved == config.resolved().written()
    assert (resolved["device"], resolved["executor"]) == (str(config.torch_device), "batched")
    again = experiment.run(read_config(resolved, own=blobs))
    assert timeless(again.records) == timeless(result.records)
    assert again.digest == result.digest


def test_the_summary_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configure: Callable[..., Config]
):
    """Whoever waits for it finds everything else."""
    seen: list[str] = []
    monkeypatch.setattr(
        run_folder, "atomic_write", lambda path, data: (seen.append(path.name), path.write_bytes(data))
    )
    experiment.run(configure(rounds=1), folder=RunFolder(tmp_path / "run"))
    assert (seen[0], seen[-1]) == ("config.yaml", "summary.json")


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
def test_the_nodes_of_a_graph_are_drawn(
    changes: dict[str, Any], there: bool, tmp_path: Path, configure: Callable[..., Config]
):
    experiment.run(configure(rounds=2, **changes), folder=RunFolder(tmp_path))
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"accuracy.png", *(["nodes.png", "map.png"] if there else [])}
    if there:
        experiment.run(configure(rounds=1), folder=RunFolder(tmp_path), existing="overwrite")
        assert {path.name for path in tmp_path.glob("*.png")} == {"accuracy.png"}


@pytest.mark.parametrize(("method", "there"), [(["dechetero", "dechw"], True), ("dechetero", False)])
def test_coordinates_are_drawn_where_curvature_is_sent(
    method: Any, there: bool, tmp_path: Path, configure: Callable[..., Config]
):
    chosen = {"coordinates": ["head.bias[2]", "body.1.weight[3, 4]"]}
    config = configure(rounds=2, topology="ring", method=method, evaluate=chosen)
    experiment.run(config, folder=RunFolder(tmp_path))
    assert (tmp_path / "coordinates.png").exists() is there


def test_the_map_is_of_the_graph_of_the_first_seed_in_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configure: Callable[..., Config]
):
    seen: list[Any] = []
    monkeypatch.setattr(drawing, "map_plot", lambda records, peers, *_: seen.append(peers))
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
def test_refusals_leave_nothing_behind(
    changes: dict[str, Any], line: str, tmp_path: Path, configure: Callable[..., Config]
):
    with pytest.raises(UserError, match=line):
        experiment.run(configure(**changes), folder=RunFolder(tmp_path / "out" / "run"))
    assert not (tmp_path / "out").exists()


def test_a_run_in_progress_cannot_be_overwritten(tmp_path: Path, configure: Callable[..., Config]):
    folder = RunFolder(tmp_path / "run")
    config = configure(rounds=1)
    experiment.run(config, folder=folder)
    before = (folder.path / METRICS).read_bytes()
    with folder.locked(), pytest.raises(UserError, match="another process is working on"):
        experiment.run(config, folder=folder, existing="overwrite")
    assert (folder.path / METRICS).read_bytes() == before
