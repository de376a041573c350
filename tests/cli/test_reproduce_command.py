"""`consilience reproduce` as a user types it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(monkeypatch: pytest.MonkeyPatch, unpainted: None) -> None:
    monkeypatch.chdir(ROOT)


def test_recipes_are_listed(clone: None, command: Callable[..., Any]):
    answer = command("reproduce")
    assert (answer.code, answer.err) == (0, "")
    assert (
        "hwa-table1       HWA's Table 1: MNIST\n                 cells: epochs-5, epochs-10\n" in answer.out
    )


def test_a_recipe_runs_stops_when_time_is_up_and_goes_on(
    clone: None, tmp_path: Path, command: Callable[..., Any]
):
    words = ("reproduce", "hwa-table3", "--quick", "--out", tmp_path)
    stopped = command(*words, "--minutes", "0")
    assert stopped.code == 3
    assert stopped.err == (
        "consilience: time is up; the same command goes on with two-classes, dirichlet, iid\n"
    )
    one = command(*words, "--cell", "iid")
    assert (one.code, one.err) == (0, "")
    rest = command(*words)
    assert (rest.code, rest.err) == (0, "")
    assert rest.out.startswith("3 cells: 1 finished\ntwo-classes  begins\n")
    assert "not measured yet" not in rest.out
    shown = command(*words, "--report")
    assert shown.out.splitlines() == rest.out.splitlines()[-len(shown.out.splitlines()) :]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A recipe of two cells, the second of which takes the best of the first."""
    path = tmp_path / "small.yaml"
    path.write_text(
        """
title: Small
paper: Nobody
base:
  {data: mnist-sample, model: {name: mlp, hidden: [4]}, clients: 2, rounds: 2, local: {steps: 1}, seeds: [0]}
cells:
  - {label: grid, compare: [{label: a, method: fedavg, solver: {name: sgd, lr: [0.001, 0.5]}}]}
  - {label: best, best_of: grid, seeds: [0, 1]}
tables:
  - {title: One, where: {cell: best}, rows: {FedAvg: "fedavg*"}, columns: {end: "*"}}
"""
    )
    return path


def test_results_are_kept_and_a_cell_follows_that_takes_the_best_of_another(
    small: Path, tmp_path: Path, unpainted: None, command: Callable[..., Any]
):
    words = ("reproduce", small, "--out", tmp_path / "runs")
    early = command(*words, "--cell", "best")
    assert (early.code, early.err.count("\n")) == (2, 1)
    assert "cell best takes the best of another cell, which is not finished" in early.err
    for more in (("rounds=3",), ("--quick",)):
        refused = command(*words, *more, "--keep", tmp_path / "kept")
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "--keep is for what" in refused.err
    answer = command(*words, "--keep", tmp_path / "kept")
    assert (answer.code, answer.err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "kept" / "small").iterdir()) == ["best", "grid"]
    assert "2 seeds." in answer.out


def test_bad_input_is_one_line(clone: None, tmp_path: Path, command: Callable[..., Any]):
    for words, said in (
        (("hwa-tabel1",), "unknown recipe 'hwa-tabel1'; did you mean 'hwa-table1'?"),
        (("hwa-table1", "--cell", "epochs-6"), "unknown cell 'epochs-6'; did you mean 'epochs-5'?"),
        (("hwa-table1", "rouds=3"), "unknown key 'rouds'; did you mean 'rounds'?"),
    ):
        answer = command("reproduce", *words, "--out", tmp_path)
        assert answer.code == 2
        assert said in answer.err
        assert answer.err.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif("CONSILIENCE_LONG" not in os.environ, reason="takes minutes: CONSILIENCE_LONG=1")
def test_every_recipe_runs_on_the_bundled_sample(clone: None, tmp_path: Path, command: Callable[..., Any]):
    answer = command("reproduce", "all", "--quick", "--out", tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert " failed " not in answer.out
