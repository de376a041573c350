"""What a person is told about scores: while a run goes on, and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.cli.display import PlainDisplay, show_result
from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.experiment import Arm, Result, plan, run
from consilience.experiment.folder import RunFolder
from consilience.problems import Regression
from consilience.report.summary import summarise

TOKENS = torch.arange(45).view(9, 5) % 4


@pytest.mark.parametrize(
    ("model", "inputs", "targets", "scores", "text"),
    [
        ("mlp", torch.zeros(9, 5), torch.arange(9) % 3, {"test_accuracy": 0.81234}, "accuracy 81.23 %"),
        ("mlp", torch.zeros(9, 5), torch.arange(9.0), {"test_r2": -0.81234}, "r2 -0.8123"),
        ("window-lm", TOKENS, TOKENS, {"test_perplexity": 12.3}, "perplexity 12.30"),
    ],
    ids=["accuracy", "r2", "perplexity"],
)
def test_progress_is_told_by_the_metric(
    model: str,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    scores: dict[str, float],
    text: str,
    capsys: pytest.CaptureFixture[str],
):
    data = Dataset.from_arrays("own", inputs, targets, inputs, targets)
    (arm,) = plan(read_config({"data": data, "model": model, "partition": "iid", "clients": 3, "rounds": 2}))
    display = PlainDisplay()
    display.start([arm])
    line = {"seed": 0, "bytes_up": 1, "bytes_down": 1, "train_loss": None, "seconds": 1.0, "samples": 5}
    for number, found in enumerate(({}, scores), start=1):
        display.round(arm, [{**line, "round": number, "dropped": [], **found}])
    without, told = capsys.readouterr().out.splitlines()
    assert "round 1/2  5 samples/s" in without
    assert f"round 2/2  {text}  5 samples/s" in told


def test_what_was_sent_is_that_of_the_method_shown(capsys: pytest.CaptureFixture[str]):
    arms = plan(
        read_config(
            {"method": ["fedavg", "local"], "clients": 3, "rounds": 2, "seeds": [0, 1], "model": "mlp"}
        )
    )
    display = PlainDisplay()
    display.start(arms)
    line = {
        "bytes_up": 100,
        "bytes_down": 50,
        "train_loss": None,
        "seconds": 1.0,
        "samples": 5,
        "dropped": [],
    }
    for arm, sent in zip(arms, (1, 0), strict=True):
        for number in (1, 2):
            lines = [{**line, "seed": seed, "round": number} for seed in (0, 1)]
            display.round(arm, [{**one, "bytes_up": sent * 100, "bytes_down": sent * 50} for one in lines])
    assert sent_of(capsys) == ["150 B", "300 B", "0 B", "0 B"]


def test_what_was_sent_before_an_interrupt_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    inputs, targets = torch.zeros(9, 5), torch.arange(9) % 3
    values = {"data": Dataset.from_arrays("own", inputs, targets, inputs, targets), "partition": "iid"}
    config = read_config({**values, "clients": 3, "rounds": 4, "seeds": [0, 1], "checkpoint": {"every": 2}})
    run(config, folder=RunFolder(tmp_path / "whole"), listener=PlainDisplay())
    whole = sent_of(capsys)
    with monkeypatch.context() as patch:
        patch.setattr(PlainDisplay, "round", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder=RunFolder(tmp_path / "run"), listener=PlainDisplay())
    run(config, folder=RunFolder(tmp_path / "run"), existing="resume", listener=PlainDisplay())
    assert len(set(whole)) == 4
    assert sent_of(capsys) == whole[2:]


def interrupt(_: PlainDisplay, arm: Arm, lines: list[dict[str, Any]]) -> None:
    """Stands for Ctrl-C in the third round."""
    if lines[0]["round"] == 3:
        raise KeyboardInterrupt


def sent_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was sent, by the lines about rounds."""
    told = capsys.readouterr().out.splitlines()
    return [text.partition(" sent")[0].rpartition("  ")[2] for text in told if " sent" in text]


def test_many_who_were_dropped_are_counted(capsys: pytest.CaptureFixture[str]):
    inputs, targets = torch.zeros(9, 5), torch.arange(9) % 3
    data = Dataset.from_arrays("own", inputs, targets, inputs, targets)
    (arm,) = plan(read_config({"data": data, "method": {"name": "fedprox", "mu": [0.1, 1]}, "clients": 5}))
    display = PlainDisplay()
    display.start([arm])
    line = {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "samples": 0, "round": 1, "seed": 0}
    lost = [f"client {number} (upload rejected)" for number in range(5)]
    lines = [{**line, "method": f"fedprox mu={mu}", "dropped": lost, "train_loss": 7e30} for mu in (0.1, 1)]
    display.round(arm, lines)
    said = capsys.readouterr().out
    assert "dropped fedprox mu=0.1, seed 0: client 0 (upload rejected)" in said
    assert "and 7 more" in said
    assert "loss 7e+30" in said
    assert "samples/s" not in said  # nobody took a step


def test_the_end_is_told_by_the_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record: dict[str, Any] = {"setting": "star", "method": "fedavg", "seed": 0, "round": 1}
    records = [{**record, "test_r2": -0.25, "bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "samples": 5}]
    metric, targets = Regression.metric, (0.5,)
    (tmp_path / "r2.png").touch()
    (tmp_path / "accuracy.png").touch()  # which is not of this run
    show_result(Result(records, [], summarise(records, targets, metric), {}, metric, targets, "", tmp_path))
    said = capsys.readouterr().out
    assert all(word in said for word in (" r2 ", "to 0.5", "-0.2500", f"plot: {tmp_path / 'r2.png'}\n"))
    assert "accuracy" not in said


def test_progress_of_a_sweep_shows_the_best_variant(capsys: pytest.CaptureFixture[str]):
    """Not a mean over settings that have nothing in common; means are over seeds alone."""
    inputs, targets = torch.zeros(9, 5), torch.arange(9) % 3
    data = Dataset.from_arrays("own", inputs, targets, inputs, targets)
    method = {"name": "fedprox", "mu": [0.1, 1.0], "weighting": "uniform"}
    (arm,) = plan(read_config({"data": data, "method": method, "seeds": [0, 1], "clients": [3], "rounds": 1}))
    display = PlainDisplay()
    display.start([arm])
    line = {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "samples": 5, "round": 1, "dropped": []}
    found = [(0.1, 0.9, 1.0), (0.1, 0.7, 2.0), (1.0, 0.5, 8.0), (1.0, None, 9.0)]
    display.round(
        arm,
        [
            {
                **line,
                "seed": i % 2,
                "method": f"mu={mu}",
                "swept": {"mu": mu},
                "test_accuracy": a,
                "train_loss": b,
            }
            for i, (mu, a, b) in enumerate(found)
        ],
    )
    assert "accuracy 80.00 %  (best: mu=0.1)  loss 1.5000" in capsys.readouterr().out
