"""Every score says on which rows it was taken; what diverged says so; scores of one's own are everywhere."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

import consilience as cs
from consilience.cli.display import show_result
from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import Result
from consilience.experiment import execution as experiment
from consilience.experiment.folder import RunFolder
from consilience.metrics import Score, Top
from consilience.problems import Classification
from consilience.report.table import clients_table, comparison_table

HELD_OUT = {"name": "iid", "holdout": 0.2}


def shown(result: Result) -> str:
    """Both tables, as a wide screen shows them."""
    console = Console(file=io.StringIO(), width=200)
    console.print(comparison_table(result.summaries, result.targets, result.metric, result.goals))
    console.print(clients_table(result.summaries, result.metric) or "no clients")
    return console.file.getvalue()


def test_nothing_held_out_is_no_score(configure: Callable[..., Config], capsys: pytest.CaptureFixture[str]):
    result = experiment.run(configure(method=["fedavg", "pfedme"]))
    for line in result.clients:
        assert (line["held_out"], line["own_accuracy"], line["own_loss"]) == (0, None, None)
        assert 0 <= line["train_accuracy"] <= 1
    last = result.records[-1]
    assert "personal_accuracy" not in last
    assert 0 <= last["personal_train_accuracy"] <= 1
    assert all(summary.clients == {} for summary in result.summaries)
    assert result.summaries[1].personal_mean is None
    show_result(result)
    assert "own accuracy: –" in capsys.readouterr().out


def test_the_spread_over_clients_of_plain_and_personalised_methods(configure: Callable[..., Config]):
    result = experiment.run(configure(method=["fedavg", "pfedme", "local"], partition=HELD_OUT, seeds=[0, 1]))
    plain, personal, local = result.summaries
    for summary, key in ((plain, "own"), (personal, "personal"), (local, "own")):
        lines = [line for line in result.clients if line["method"] == summary.method]
        assert {line["held_out"] for line in lines} == {3}
        seeds = [[one[f"{key}_accuracy"] for one in lines if one["seed"] == seed] for seed in (0, 1)]
        found = summary.clients["accuracy"]
        assert (found.rows, found.clients) == ("held out", 4)
        assert found.mean == pytest.approx(np.mean(seeds))
        assert found.worst == pytest.approx(np.mean([min(seed) for seed in seeds]))
        assert found.tenth == pytest.approx(np.mean([np.quantile(seed, 0.1) for seed in seeds]))
        assert found.std == pytest.approx(np.mean([np.std(seed) for seed in seeds]))
    rows = [line for line in shown(result).splitlines() if "held out" in line]
    assert [row.split()[0] for row in rows] == ["fedavg", "pfedme", "local"]


def test_scores_on_kept_back_rows_are_those_of_the_final_model(blobs: Dataset):
    """A run of no effect but one: its model is known, and so is what it says about any row."""
    config = read_config(
        {"data": {"name": "blobs", "normalize": "none"}, "model": "logistic", "clients": 2, "rounds": 1}
        | {"partition": HELD_OUT, "dtype": "float64"},
        own=blobs,
    )
    result = experiment.run(config)
    params = {name: value[0] for name, value in result.models["star fedavg"]["params"].items()}
    weight = next(value for value in params.values() if value.ndim == 2)
    bias = next(value for value in params.values() if value.ndim == 1)
    arms = experiment.plan(config)
    for line in result.clients:
        part = arms[0].scene.partitions[0]
        for kind, rows in (("own", part.holdouts), ("train", part.shards)):
            chosen = torch.from_numpy(rows[line["client"]])
            outputs = blobs.inputs[chosen].double() @ weight.T + bias
            right = (outputs.argmax(1) == blobs.targets[chosen]).double().mean()
            assert line[f"{kind}_accuracy"] == pytest.approx(float(right))
            loss = F.cross_entropy(outputs, blobs.targets[chosen])
            assert line[f"{kind}_loss"] == pytest.approx(float(loss), rel=1e-12)


def test_a_client_too_small_to_hold_out_is_left_out(configure: Callable[..., Config]):
    sizes = {"name": "sizes", "fractions": [0.94, 0.02, 0.02, 0.02], "holdout": 0.2}
    result = experiment.run(configure(method="pfedme", partition=sizes))
    held = {line["client"]: line["held_out"] for line in result.clients}
    assert 0 in held.values()
    assert max(held.values()) > 0
    for line in result.clients:
        assert (line["own_accuracy"] is None) == (line["personal_accuracy"] is None) == (not line["held_out"])
    assert result.summaries[0].clients["accuracy"].clients == sum(count > 0 for count in held.values())
    assert result.summaries[0].diverged == 0


@pytest.mark.parametrize("executor", ["batched", "sequential"])
def test_a_diverged_run_says_so(executor: str, tmp_path: Path, configure: Callable[..., Config]):
    solver = {"name": "sgd", "lr": [0.1, 1e30]}
    config = configure(solver=solver, executor=executor, partition={"name": "iid", "holdout": 0.2})
    result = experiment.run(config, folder=RunFolder(tmp_path))
    sane, wild = result.summaries
    assert (sane.diverged, wild.diverged) == (0, 1)
    good, bad, _, _ = (line for line in shown(result).splitlines() if line.startswith("fedavg lr"))
    assert "diverged" in bad
    assert "diverged" not in good
    methods = json.loads((tmp_path / "summary.json").read_text())["methods"]
    assert [method["diverged"] for method in methods] == [0, 1]
    # What is left is the model before uploads went wrong, whose score is none of the method's.
    assert result.records[-1]["test_accuracy"] is not None
    assert (wild.final_mean, wild.scores["loss"]["mean"], wild.clients) == (None, None, {})
    assert methods[1]["final_accuracy"] == {"mean": None, "std": None}


def test_rejected_uploads_are_a_line_a_seed(
    configure: Callable[..., Config], caplog: pytest.LogCaptureFixture
):
    """However many variants and clients there are; records name them all."""
    config = configure(solver={"name": "sgd", "lr": [0.1, 1e30, 1e32]}, clients=6, rounds=1, seeds=[0, 1])
    with caplog.at_level(logging.WARNING, "consilience"):
        result = experiment.run(config)
    some = "client 0, client 1, client 2, and 3 more"
    assert caplog.messages == [
        f"fedavg, seed {seed}, round 1: rejected the uploads of {some}" for seed in (0, 1)
    ]
    assert [len(line["dropped"]) for line in result.records] == [0, 0, 6, 6, 6, 6]


def auc(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """The chance that a row of class 0 gets a larger output for it than another row does."""
    mine, others = outputs[targets == 0, 0], outputs[targets != 0, 0]
    if not len(mine) or not len(others):
        return float("nan")
    return float((mine[:, None] > others).double().mean())


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A package beside the working directory that has the function."""
    folder = tmp_path / "clinic"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "scores.py").write_text(
        "def auc(outputs, targets, label=0):\n"
        "    mine, others = outputs[targets == label, label], outputs[targets != label, label]\n"
        "    if not len(mine) or not len(others):\n        return float('nan')\n"
        "    return (mine[:, None] > others).double().mean()\n"
        "def error(outputs, targets):\n    return (outputs.argmax(1) != targets).double().mean()\n"
        "error.higher_is_better = False\n"
        "def broken(outputs, targets):\n    return outputs.nonsense\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "clinic.scores"
    for name in [name for name in sys.modules if name.startswith("clinic")]:
        del sys.modules[name]
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def test_scores_of_ones_own(package: str, tmp_path: Path, configure: Callable[..., Config], lines: Any):
    metrics = ["f1_macro", f"{package}:auc", {"name": f"{package}:auc", "label": "auc0"}]
    config = configure(
        metrics=[*metrics, f"{package}:error"],
        targets={"accuracy": [0.5], "auc": 0.6, "error": [0.5, 0.0], "loss": 99},
        method=["fedavg", "local"],
        partition=HELD_OUT,
    )
    folder = RunFolder(tmp_path / "run")
    result = experiment.run(config, folder=folder)
    assert set(result.scores) == {"accuracy", "f1_macro", "auc", "auc0", "error", "loss"}
    for record in result.records:
        assert record["test_error"] == pytest.approx(1 - record["test_accuracy"])
        assert record["test_auc"] == record["test_auc0"]
    for line in lines(folder.path / "clients.jsonl"):
        assert line["train_error"] == pytest.approx(1 - line["train_accuracy"])
        assert line["own_error"] == pytest.approx(1 - line["own_accuracy"])
        assert {"own_auc", "own_f1_macro", "train_f1_macro"} <= line.keys()
    first = result.summaries[0]
    assert first.rounds_to["loss 99.0"]["mean"] == 1
    assert first.rounds_to["error 0.5"]["mean"] is not None  # where less is better
    assert first.clients["error"].worst >= first.clients["error"].mean
    text = shown(result)
    assert "f1_macro" in text
    assert text.split().count("error") == 3  # the score, and its two targets
    summary = json.loads((folder.path / "summary.json").read_text())["methods"][0]
    assert summary["final_auc"]["mean"] == result.scores["auc"] == result.records[2]["test_auc"]
    again = experiment.run(config, folder=folder, existing="resume")
    assert again.digest == result.digest


def test_a_function_from_python_and_executors_agree(configure: Callable[..., Config]):
    common = {"metrics": [auc, Top(2), "recall_macro"], "dtype": "float64", "partition": HELD_OUT}
    batched = experiment.run(configure(**common))
    one_by_one = experiment.run(configure(**common, executor="sequential"))
    for key in ("test_auc", "test_top2", "test_recall_macro"):
        assert batched.records[-1][key] == pytest.approx(one_by_one.records[-1][key], abs=1e-9)
    assert batched.records[-1]["test_top2"] >= batched.records[-1]["test_accuracy"]


class Share:
    """The share of rows of a class, gathered as torchmetrics does it."""

    def __init__(self, label: int = 0) -> None:
        self.label = label
        self.reset()

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.found, self.rows = self.found + int((targets == self.label).sum()), self.rows + len(targets)

    def compute(self) -> float:
        return self.found / self.rows

    def reset(self) -> None:
        self.found = self.rows = 0


def test_a_class_or_an_object_from_python(configure: Callable[..., Config], tmp_path: Path, blobs: Dataset):
    expected = {label: (blobs.test_targets == label).double().mean().item() for label in (0, 2)}
    of_class = experiment.run(configure(metrics=[Share], rounds=1))
    assert of_class.scores["Share"] == pytest.approx(expected[0])
    config, folder = configure(metrics=[Share(2)], rounds=1), RunFolder(tmp_path / "run")
    result = experiment.run(config, folder=folder)
    assert result.scores["Share"] == pytest.approx(expected[2])
    with pytest.raises(UserError, match=r"metrics: that of this run \(.*Share\) is an object of Python"):
        cs.resume(result, rounds=2, data=blobs)
    assert experiment.run(config, folder=folder, existing="resume").digest == result.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": ["f1_makro"]}, "f1_makro"),
        ({"metrics": ["no_such_package:thing"]}, "cannot import no_such_package"),
        ({"metrics": ["math:thing"]}, "metric math:thing: unknown name"),
        ({"metrics": ["f1_macro", "f1_macro"]}, "f1_macro is already a score of this run"),
        ({"metrics": [3]}, "expected a name or a function, not an int"),
        ({"metrics": [lambda outputs, targets: 0.0]}, "give it a label"),
        ({"metrics": [lambda outputs: 0.0]}, "too many positional arguments"),
        (
            {"metrics": ["accuracy"]},
            r"accuracy is a score that problems have by themselves \(classification\)",
        ),
        ({"targets": {"f1_macro": [0.5]}}, "score among targets"),
        ({"targets": {"accuracy": [90]}}, "write 0.9 for 90 %"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_round(
    changes: dict[str, Any], message: str, configure: Callable[..., Config]
):
    with pytest.raises(UserError, match=message):
        experiment.plan(configure(**changes))


def test_scores_of_classes_are_refused_elsewhere(configure: Callable[..., Config]):
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 5, generator=random)
    data = Dataset.from_arrays("numbers", inputs[:20], inputs[:20, 0], inputs[20:], inputs[20:, 0])
    with pytest.raises(UserError, match="regression has none"):
        experiment.plan(configure(data=data, metrics=["f1_macro"], targets=[]))


def test_a_mistake_in_a_function_is_one_line(package: str, configure: Callable[..., Config]):
    misspelt = {"name": f"{package}:auc", "labl": 1}
    with pytest.raises(UserError, match=r"unknown option of metric auc 'labl'; .*\(known: label\)"):
        experiment.plan(configure(metrics=[misspelt]))
    with pytest.raises(UserError, match=r"metric broken of 30 rows: AttributeError: .*nonsense"):
        experiment.run(configure(metrics=[f"{package}:broken"]))


def test_metrics_of_torchmetrics(configure: Callable[..., Config]):
    pytest.importorskip("torchmetrics")
    metrics = [
        "f1_macro",
        {"name": "torchmetrics.classification:MulticlassF1Score", "average": "macro", "label": "theirs"},
        {"name": "torchmetrics:CohenKappa", "label": "kappa"},
    ]
    result = experiment.run(configure(metrics=metrics, rounds=2))
    last = result.records[-1]
    assert last["test_theirs"] == pytest.approx(last["test_f1_macro"], abs=1e-6)
    assert -1 <= last["test_kappa"] <= 1


@dataclasses.dataclass(frozen=True)
class Rows(Score):
    """A score with an option: how many rows there are, times a factor."""

    name: ClassVar[str] = "weighed_rows"
    factor: float = 1.0

    def tally(self, outputs: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> dict[str, Any]:
        return {"rows": weight.double().sum()}

    def score(self, sums: dict[str, Any]) -> torch.Tensor:
        return self.factor * sums["rows"]


def test_a_score_from_python_keeps_its_options_in_a_file(configure: Callable[..., Config]):
    config = configure(metrics=[Rows(factor=3.0)])
    (written,) = config.written()["metrics"]
    assert written == {"name": f"{__name__}:Rows", "factor": 3.0}
    (again,) = read_config({"metrics": [written]}).metrics
    assert again.make(Classification(), 3) == Rows(factor=3.0)
