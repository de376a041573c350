"""Data that come from hospitals: each keeps its rows and its name, and nobody needs a global test set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.cli.showing import show_partitions
from consilience.config import read_config
from consilience.experiment.planning import plan
from consilience.problems import Classification
from consilience.report.bubbles import bubble_figure
from consilience.report.graphs import graph_figure
from consilience.report.node_map import map_figure
from consilience.report.node_records import Peers, node_names

TINY: dict[str, Any] = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 2, "local": {"batch_size": 8}}
SIZES = {"Basel": (30, 10), "Bern": (20, 0), "Genève": (50, 7)}


def hospital(rows: int, tests: int, seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    inputs, targets = random.normal(size=(rows + tests, 5)), random.integers(0, 3, rows + tests)
    targets[:3] = range(3)
    known = inputs[:rows].astype(np.float32), targets[:rows]
    return (*known, inputs[rows:].astype(np.float32), targets[rows:]) if tests else known


HOSPITALS = {name: hospital(*size, seed) for seed, (name, size) in enumerate(SIZES.items())}


def test_hospitals_keep_their_rows_and_their_names(tmp_path: Path):
    data = cs.Dataset.from_clients(HOSPITALS, "hospitals")
    result = cs.run(["fedavg", "local"], data=data, out=tmp_path, **TINY)
    assert result.path is not None
    lines = [json.loads(line) for line in (result.path / "clients.jsonl").read_text().splitlines()]
    assert [(line["client"], line["name"], line["samples"]) for line in lines[:3]] == [
        (0, "Basel", 30),
        (1, "Bern", 20),
        (2, "Genève", 50),
    ]
    (manifest,) = json.loads((result.path / "partitions.json").read_text()).values()
    assert manifest["seeds"]["0"]["clients"] == ["Basel", "Bern", "Genève"]
    assert manifest["seeds"]["0"]["holdout_sizes"] == [10, 0, 7]
    assert "by_client" in (result.path / "config.yaml").read_text()
    for summary in result.summaries:  # the table names who is served worst
        own = {line["name"]: line["own_accuracy"] for line in lines if line["method"] == summary.method}
        scores = {name: value for name, value in own.items() if value is not None}
        found = summary.clients["accuracy"]
        assert scores[found.who] == found.worst == min(scores.values())
        assert f"({found.who})" in str(result.table())


def test_every_hospital_trains_on_its_rows_and_all_are_tested_on_theirs():
    data = cs.Dataset.from_clients(HOSPITALS)
    (arm,) = plan(read_config({"data": data, **TINY}))
    part = arm.scene.partitions[0]
    everything = torch.cat([torch.as_tensor(data.inputs[:]), torch.as_tensor(data.test_inputs[:])])
    for name, rows, tests in zip(part.names, part.shards, part.holdouts, strict=True):
        inputs, _, *test = HOSPITALS[name]
        assert torch.equal(everything[rows], torch.from_numpy(inputs))
        assert torch.equal(everything[tests], torch.from_numpy(test[0] if test else inputs[:0]))
    assert len(data.test_inputs) == 17


def test_the_score_is_that_of_all_test_rows_and_each_client_has_its_own():
    result = cs.run("fedavg", data=cs.Dataset.from_clients(HOSPITALS), **TINY)
    own = {line["name"]: line["own_accuracy"] for line in result.clients}
    pooled = (10 * own["Basel"] + 7 * own["Genève"]) / 17
    assert result.accuracy == pytest.approx(pooled)


def test_names_are_in_what_is_said_about_lost_uploads_and_on_a_graph(tmp_path: Path):
    data = cs.Dataset.from_clients(HOSPITALS)
    result = cs.run("fedavg", data=data, failure_rate=1.0, **TINY)
    assert result.records[0]["dropped"] == [f"{name} (upload lost)" for name in SIZES]
    result = cs.run("dechw", data=data, topology="ring", out=tmp_path, **TINY)
    assert {line["name"] for line in result.clients} == set(SIZES)


def test_names_are_in_the_table_of_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    show_partitions(read_config({"data": cs.Dataset.from_clients(HOSPITALS, "hospitals")}))
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["│", "Genève", "│", "50", "│", "7", "│"] in said
    assert (tmp_path / "runs" / "run-star-partition.png").exists()


def test_names_are_in_plots():
    everyone = ~np.eye(3, dtype=np.bool_)
    words = {text.get_text() for text in graph_figure(everyone, [3, 2, 5], names=list(SIZES)).axes[0].texts}
    assert words == set(SIZES)
    axes = bubble_figure(np.ones((3, 2), dtype=np.int64), client_names=list(SIZES)).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(SIZES)
    peers = Peers(0, everyone, (3, 2, 5), tuple(SIZES))
    assert node_names(peers, [2]) == ["Genève, 5 rows"]
    record = {"setting": "ring", "method": "dechw", "seed": 0, "round": 1, "nodes": {"accuracy": [0.1] * 3}}
    figure = map_figure([record], {"ring": peers}, Classification.metric, "")
    assert {text.get_text() for text in figure.axes[0].texts} == set(SIZES)


def test_rows_can_be_kept_back_where_nobody_has_test_rows():
    bare = {name: arrays[:2] for name, arrays in HOSPITALS.items()}
    with pytest.raises(cs.UserError, match=r"no client has test rows.*holdout=0\.2"):
        cs.Dataset.from_clients(bare)
    data = cs.Dataset.from_clients(bare, holdout=0.2)
    assert torch.bincount(data.test_groups).tolist() == [6, 4, 10]
    assert torch.bincount(data.groups).tolist() == [24, 16, 40]
    assert data.digest() == cs.Dataset.from_clients(bare, holdout=0.2).digest()
    both = torch.cat([data.inputs[:], data.test_inputs[:]])
    assert both.sum() == pytest.approx(sum(float(inputs.sum()) for inputs, _ in bare.values()), abs=1e-4)


def test_the_data_say_how_they_are_split():
    data = cs.Dataset.from_clients(HOSPITALS)
    config = read_config({"data": data, "partition": {"name": "by_client", "holdout": 0.5}})
    assert (config.population, config.partition.holdout) == (3, 0.5)
    with pytest.raises(cs.UserError, match=r"comes from 3 clients .Basel, Bern, Genève.*not iid"):
        read_config({"data": data, "partition": "iid"})
    with pytest.raises(cs.UserError, match="comes from 3 clients, not from 4"):
        read_config({"data": data, "clients": 4})
    two = cs.run("fedavg", data=data, clients=2, **TINY)
    assert len({line["name"] for line in two.clients} & set(SIZES)) == 2
    with pytest.raises(cs.UserError, match="does not say who holds its rows"):
        cs.run("fedavg", data="mnist-sample", partition="by_client")


REFUSED = [
    ({}, "there are no clients"),
    ([HOSPITALS["Bern"]], "own data: give each client's arrays by its name"),
    ({"Basel": {"X": np.zeros((4, 2)), "y": np.arange(4)}}, "own data: Basel: give (inputs, targets) or"),
    (
        {"Basel": (np.zeros((2, 2)), np.array(["ill", "well"]))},
        "own data: Basel: targets hold text or other objects, not numbers; np.unique",
    ),
    (
        {"Basel": (np.zeros((2, 2)), np.array([0, 10**9]), np.zeros((1, 2)), np.array([0]))},
        "targets go up to 1000000000, for 3 rows; number classes from 0 on",
    ),
    ({"Basel": ([[1.0, 2.0], [3.0]], [0, 1])}, "own data: Basel: inputs cannot become a tensor"),
    ({"Basel": (np.zeros((2, 2)), "no.npy")}, "own data: Basel: targets: no.npy is no .npy file"),
    ({"Basel": (np.zeros((4, 2)),)}, "own data: Basel: give (inputs, targets) or"),
    ({"Basel": (np.zeros((4, 2)), np.arange(3))}, "own data: Basel: there are 3 targets for 4 inputs"),
    ({"Basel": (np.zeros((0, 2)), np.arange(0))}, "own data: Basel: there are no training rows"),
    (
        {"Basel": HOSPITALS["Basel"], "Bern": (np.zeros((4, 2)), np.arange(4))},
        "inputs of Bern are float64 [2], but those of Basel are float32 [5]",
    ),
]


@pytest.mark.parametrize(("clients", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(clients: dict[str, Any], message: str):
    with pytest.raises(cs.UserError) as caught:
        cs.Dataset.from_clients(clients)
    assert message in str(caught.value)


def test_a_folder_of_files_one_a_client(tmp_path: Path):
    for name, arrays in HOSPITALS.items():
        keys = ("x", "y", "x_test", "y_test")
        np.savez(tmp_path / f"{name}.npz", **dict(zip(keys, arrays, strict=False)))
    data = cs.Dataset.from_folder(tmp_path)
    assert data.digest() == cs.Dataset.from_clients(HOSPITALS).digest()
    assert data.name == tmp_path.name
    np.savez(tmp_path / "Zug.npz", pixels=np.zeros(3))
    with pytest.raises(cs.UserError, match=r"Zug\.npz holds pixels; wanted are arrays named inputs, targets"):
        cs.Dataset.from_folder(tmp_path)
    with pytest.raises(cs.UserError, match=r"no \.npz files"):
        cs.Dataset.from_folder(tmp_path / "elsewhere")


def test_a_hospitals_model_is_found_by_its_name(tmp_path: Path):
    run = cs.run("local", data=cs.Dataset.from_clients(HOSPITALS), out=tmp_path, **TINY).path
    assert run is not None
    named, numbered = (cs.load_model(run, client=client) for client in ("Genève", 2))
    assert named.origin == numbered.origin
    assert named.origin.name == "Genève"
    with pytest.raises(cs.UserError, match="no model of client Thun; there are those of Basel, Bern, Genève"):
        cs.load_model(run, client="Thun")


def told(caplog: pytest.LogCaptureFixture, targets: Any) -> list[str]:
    """What is said about targets."""
    caplog.clear()
    cs.Dataset.from_clients({"Basel": (np.zeros((6, 2)), targets)}, holdout=0.4)
    return caplog.messages


def test_labels_that_are_perhaps_meant_otherwise_are_said(caplog: pytest.LogCaptureFixture):
    (line,) = told(caplog, np.array([1, 2, 3] * 2))
    assert "targets go from 1 to 3, and classes are counted from 0" in line
    (line,) = told(caplog, np.array([0.0, 1.0, 2.0] * 2))
    assert "targets are floats, so these are numbers to predict; give integers if they are classes" in line
    assert told(caplog, np.array([0, 1, 2] * 2)) == []
    assert told(caplog, np.array([0.5, 1.0, 2.0] * 2)) == []


def test_arrays_alone_are_no_data_set():
    with pytest.raises(cs.UserError, match=r"arrays by client become data by cs\.Dataset\.from_clients"):
        cs.run("fedavg", data=HOSPITALS, **TINY)


def test_nothing_in_place_of_test_rows_means_none():
    inputs, targets = HOSPITALS["Bern"]
    with_none = {**HOSPITALS, "Bern": (inputs, targets, None, None)}
    assert cs.Dataset.from_clients(with_none).digest() == cs.Dataset.from_clients(HOSPITALS).digest()
