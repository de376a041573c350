"""Overrides: what a command line changes in a file."""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any

import pytest

from consilience.config import Config, load_config
from consilience.errors import UserError

EXAMPLE = Path(__file__).with_name("published.yaml").read_text()


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return load_config(path, overrides)


def reach(value: Any, path: str) -> Any:
    """What stands at a dotted path of nested mappings and lists."""
    steps = [int(step) if step.isdigit() else step for step in path.split(".")]
    return functools.reduce(operator.getitem, steps, value)


OVERRIDES = [
    # (what the file says, overrides, path, value there)
    ("rounds: 9", ["rounds=5"], "rounds", 5),
    (EXAMPLE, ["rounds=5", "solver.lr=0.01"], "solver.lr", 0.01),
    (EXAMPLE, ["rounds=5", "solver.lr=0.01", "method.name=fedavg"], "method.0.name", "fedavg"),
    ("solver: adam", ["solver.lr=1e-2"], "solver.lr", 0.01),
    ("solver: {name: sgd, lr: 1}", ["solver.lr=0.01", "solver.momentum=0.5"], "solver.lr", 0.01),
    ("solver: {name: sgd}", ["solver.lr=[0.1,0.2]"], "solver.lr", [0.1, 0.2]),
    ("method: hwa", ["method.name=fedavg"], "method.0.name", "fedavg"),
    ("method: hwa", ["method.layers=all"], "method.0.layers", "all"),
    ("local: {epochs: 3}", ["local.steps=7"], "local.steps", 7),
    ("local: {steps: 3}", ["local.epochs=7"], "local.steps", None),
    ("method: hwa", ["method.mu=2", "method.name=fedprox"], "method.0.mu", 2.0),
    ("data: {name: mnist, normalize: unit}", ["data.name=mnist-sample"], "data.normalize", "unit"),
    ("rounds: 1", ["method=fedcurv"], "method.0.name", "fedcurv"),
    ("rounds: 1", ["method={name: fedprox, mu: 2}"], "method.0.mu", 2.0),
    ("rounds: 1", ["method=[fedavg, hwa]"], "method.1.name", "hwa"),
    ("method: [{name: fedavg}, hwa]", ["method.0.name=fedprox", "method.0.mu=3"], "method.0.mu", 3.0),
    ("method: [fedavg, hwa]", ["method.1=swa"], "method.1.name", "swa"),
    ("seeds: [7]", ["seeds=[0,1]"], "seeds", [0, 1]),
    ("seeds: [7, 8]", ["seeds.1=9"], "seeds", [7, 9]),
    ("seeds: [7]", ["seeds=3"], "seeds", [3]),
    ("data: mnist-sample", ["data.normalize=unit"], "data.normalize", "unit"),
    ("rounds: 1", ["data.normalize=unit"], "data.name", "mnist-sample"),
    ("local: {epochs: 3}", ["local.epochs=", "local.steps=4"], "local.steps", 4),
    ("clients: 5", ["clients="], "clients", None),
    ("model: mlp", ["model.hidden=[8]"], "model.hidden", [8]),
    ("compare: [{rounds: 1}, {rounds: 2}]", ["compare.1.rounds=7"], "compare.1.rounds", 7),
    ("method: [fedavg, hwa]", ["method.0.name=swa"], "method.0.name", "swa"),
    (
        "method: {objective: {name: proximal, mu: 7}}",
        ["method.objective.name=contrastive"],
        "method.0.objective.mu",
        5.0,
    ),
    (
        "problem: {name: classification, class_weights: balanced}",
        ["problem.name=regression"],
        "problem.loss",
        "mse",
    ),
    ("rounds: 3", ["problem.class_weights=balanced"], "problem.class_weights", "balanced"),
    ("rounds: 1", ["solver.lr=0.5"], "solver.lr", 0.5),
    ("rounds: 1", ["model.hidden=[8]"], "model.hidden", [8]),
    ("rounds: 1", ["partition.holdout=0.2"], "partition.holdout", 0.2),
    ("note: old", ["note="], "note", ""),
    ("note: old", ["note=3"], "note", "3"),
    ("note: old", ["note=yes"], "note", "yes"),
    ("note: old", ["note='a quoted one'"], "note", "a quoted one"),
    ("note: old", ["note=hwa: better: by far # really"], "note", "hwa: better: by far # really"),
    ("name: old", ["name=2024"], "name", "2024"),
]


@pytest.mark.parametrize(("text", "overrides", "path", "value"), OVERRIDES)
def test_overrides(text: str, overrides: list[str], path: str, value: object, tmp_path: Path):
    assert reach(load(tmp_path, text, *overrides).written(), path) == value


def test_an_override_that_every_setting_hides_is_refused(tmp_path: Path):
    text = "compare: [{method: hwa}, {method: swa, rounds: 2}]"
    with pytest.raises(UserError, match="has no effect: every item of compare sets method"):
        load(tmp_path, text, "method.name=fedsgd")
    assert load(tmp_path, text, "rounds=7").rounds == 7
