"""Runs about other problems than classification: their scores in the result and in the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.config.config import Config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import execution as experiment
from consilience.experiment.folder import RunFolder
from consilience.problems import Metric, NextToken, Regression


def numbers() -> dict[str, Any]:
    """A regression problem."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(90, 5, generator=random)
    targets = inputs @ torch.randn(5, generator=random)
    data = Dataset.from_arrays("numbers", inputs[:60], targets[:60], inputs[60:], targets[60:])
    return {"data": data, "partition": "iid"}


def tokens() -> dict[str, Any]:
    """A problem of next tokens: each is the one before it, or one more."""
    random = torch.Generator().manual_seed(0)
    rows = torch.cumsum(torch.randint(0, 2, (90, 7), generator=random), 1) % 5
    inputs, targets = rows[:, :-1], rows[:, 1:]
    data = Dataset.from_arrays("tokens", inputs[:60], targets[:60], inputs[60:], targets[60:])
    model = {"name": "window-lm", "window": 1, "width": 4, "hidden": 8}
    return {"data": data, "partition": "iid", "model": model}


LOSS = Metric("loss", higher_is_better=False)
CASES = [(Regression, numbers, max, [-9.0, 0.999]), (NextToken, tokens, min, [99.0, 1.001])]


@pytest.mark.parametrize(("problem", "changes", "best", "targets"), CASES, ids=["r2", "perplexity"])
def test_the_score_of_a_run(
    problem: Any, changes: Any, best: Any, targets: Any, tmp_path: Path, configure: Callable[..., Config]
):
    metric, others = problem.metric, problem.others
    config = configure(**changes(), topology="ring", method="dechetero", targets=targets)
    result = experiment.run(config, folder=RunFolder(tmp_path))
    assert (result.metric, result.targets) == (metric, tuple(targets))
    curve = [record[f"test_{metric.name}"] for record in result.records]
    assert result.score == curve[-1]
    last = result.records[-1]
    assert result.scores == {one.name: last[f"test_{one.name}"] for one in (metric, *others, LOSS)}
    with pytest.raises(UserError, match=rf"about {metric.name}, not accuracy: ask for result\.score"):
        _ = result.accuracy
    assert {path.name for path in tmp_path.glob("*.png")} == {f"{metric.name}.png", "nodes.png", "map.png"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    (method,) = summary["methods"]
    assert summary["metric"] == method["metric"] == metric.name
    assert method[f"final_{metric.name}"] == {"mean": curve[-1], "std": 0}
    assert method[f"best_{metric.name}"] == {"mean": best(curve), "std": 0}
    easy, hard = method["rounds_to"].values()
    assert (easy["mean"], hard["mean"]) == (1, None)


def test_the_plot_of_another_problem_is_overwritten_too(tmp_path: Path, configure: Callable[..., Config]):
    for name in ("r2.png", "perplexity.png", "auc.png", "mine.png"):
        (tmp_path / name).touch()
    experiment.run(configure(rounds=1), folder=RunFolder(tmp_path), existing="overwrite")
    assert {path.name for path in tmp_path.glob("*.png")} == {"accuracy.png", "mine.png"}


def test_other_problems_have_no_targets_of_their_own(configure: Callable[..., Config]):
    result = experiment.run(configure(**numbers(), rounds=1))
    assert (result.targets, result.summaries[0].rounds_to) == ((), {})
