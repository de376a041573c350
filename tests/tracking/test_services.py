"""Each service's own library reads back what was tracked. (W&B works offline, MLflow in a folder.)"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import consilience as cs
from consilience.tracking import MLflow, TensorBoard, WandB

KEYS = ("test_accuracy", "train_loss")
REASON = "is not installed: pip install 'consilience[{}]'"


def test_tensorboard(tracked: Callable[..., cs.Result], curve: Callable[..., list[Any]], tmp_path: Path):
    module = "tensorboard.backend.event_processing.event_accumulator"
    events = pytest.importorskip(module, reason="tensorboard " + REASON.format("tensorboard"))
    result = tracked(TensorBoard())
    folder = tmp_path / "runs" / "tiny" / "tensorboard"

    def read(path: Path) -> Any:
        return events.EventAccumulator(str(path)).Reload()

    for method in ("fedavg", "local"):
        for seed in (0, 1):
            found = read(folder / "star" / method / str(seed))
            for key in KEYS:
                values = [(event.step, event.value) for event in found.Scalars(key)]
                assert values == [
                    (number, pytest.approx(value)) for number, value in curve(result, method, seed, key)
                ]
    texts = read(folder)
    (config,) = texts.Tensors("config/text_summary")
    assert b"name: tiny" in config.tensor_proto.string_val[0]
    (table,) = texts.Tensors("table/text_summary")
    assert b"| star | fedavg |" in table.tensor_proto.string_val[0]


def test_mlflow(tracked: Callable[..., cs.Result], curve: Callable[..., list[Any]], tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow " + REASON.format("mlflow"))
    uri = str(tmp_path / "store")
    result = tracked(MLflow(uri=uri, experiment="trial"))
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("trial").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    curves = [f"star {method} seed {seed}" for method in ("fedavg", "local") for seed in (0, 1)]
    assert runs.keys() == {"tiny", *curves}
    assert all(run.info.status == "FINISHED" for run in runs.values())
    parent = runs["tiny"]
    assert parent.data.params["local.batch_size"] == "4"
    assert parent.data.params["method.0.name"] == "fedavg"
    texts = {
        name: mlflow.artifacts.load_text(f"{parent.info.artifact_uri}/{name}")
        for name in ("config.yaml", "table.md")
    }
    assert texts["config.yaml"].startswith("name: tiny\n")
    assert "| star | fedavg |" in texts["table.md"]
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            run = runs[f"star {method} seed {seed}"]
            assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert run.data.params == {"setting": "star", "method": method, "seed": str(seed)}
            for key in KEYS:
                history = client.get_metric_history(run.info.run_id, key)
                assert [(one.step, one.value) for one in history] == curve(result, method, seed, key)


class Stop(cs.Listener):
    """An interrupt in the second round."""

    def round(self, arm, lines):
        if lines[0]["round"] == 2:
            raise KeyboardInterrupt


def test_mlflow_goes_on_with_the_same_runs(tracked: Callable[..., cs.Result], tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow " + REASON.format("mlflow"))
    uri = str(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        tracked(MLflow(uri=uri), listener=Stop(), seeds=[0])
    cs.resume(tmp_path / "runs" / "tiny", rounds=3)
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("consilience").experiment_id])
    assert {run.info.run_name for run in runs} == {"tiny", "star fedavg seed 0", "star local seed 0"}
    (own,) = (run for run in runs if run.info.run_name == "star fedavg seed 0")
    assert {one.step for one in client.get_metric_history(own.info.run_id, "train_loss")} == {1, 2, 3}
    (parent,) = (run for run in runs if run.info.run_name == "tiny")
    assert (parent.data.params["rounds"], parent.data.tags["rounds"]) == ("2", "3")
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_an_mlflow_server_that_is_not_there_is_one_line(
    tracked: Callable[..., cs.Result], caplog: pytest.LogCaptureFixture
):
    pytest.importorskip("mlflow", reason="mlflow " + REASON.format("mlflow"))
    result = tracked(MLflow(uri="http://127.0.0.1:9"))
    (record,) = (record for record in caplog.records if record.name == "consilience")
    assert record.getMessage().startswith("tracking by mlflow is off, the run goes on (MlflowException: ")
    assert result.digest == tracked().digest


def test_wandb(tracked: Callable[..., cs.Result], curve: Callable[..., list[Any]], tmp_path: Path):
    wandb = pytest.importorskip("wandb", reason="wandb " + REASON.format("wandb"))
    result = tracked(WandB(mode="offline", project="trial"))
    wandb.teardown()  # files are complete when its process has ended
    files = list((tmp_path / "runs" / "tiny" / "wandb").glob("offline-run-*/*.wandb"))
    runs = {found["name"]: found for found in map(_read_offline, files)}
    curves = [f"star {method} seed {seed}" for method in ("fedavg", "local") for seed in (0, 1)]
    assert runs.keys() == {"tiny table", *(f"tiny {curve}" for curve in curves)}
    assert {(run["group"], run["project"]) for run in runs.values()} == {("tiny", "trial")}
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            run = runs[f"tiny star {method} seed {seed}"]
            assert (run["config"]["method"], run["config"]["seed"]) == (method, seed)
            assert run["config"]["local"]["batch_size"] == 4
            for key in KEYS:
                found = [(line["_step"], line[key]) for line in run["history"]]
                assert found == curve(result, method, seed, key)
    (table,) = (tmp_path / "runs" / "tiny" / "wandb").glob("offline-run-*/files/media/table/*.table.json")
    rows = json.loads(table.read_text())
    found = [dict(zip(rows["columns"], row, strict=True)) for row in rows["data"]]
    assert [(row["method"], row["final_accuracy.mean"]) for row in found] == [
        (one.method, one.final_mean) for one in result.summaries
    ]


def _read_offline(path: Path) -> dict[str, Any]:
    """The run in a file that W&B has written for `wandb sync`."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    found: dict[str, Any] = {"history": [], "config": {}}
    for data in _records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run = record.run
            found |= {"name": run.display_name, "group": run.run_group, "project": run.project}
            found["config"] |= {item.key: json.loads(item.value_json) for item in run.config.update}
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            line = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
            found["history"].append(line)
    return found


def _records(data: bytes, header: int = 7, block: int = 32768) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of parts, each with a sum, a length and a kind before it."""
    place, whole = header, b""
    while place + header <= len(data):
        if block - place % block < header:  # no part begins so near to a block's end
            place += block - place % block
            continue
        length, kind = struct.unpack("<4xHB", data[place : place + header])
        whole += data[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""
