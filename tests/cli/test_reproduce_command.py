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
    words = ("reproduce", "hwa-table3", "--quick", "--out", tmp_path, "--keep", tmp_path / "kept")
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
    assert sorted(path.name for path in (tmp_path / "kept" / "hwa-table3").iterdir()) == [
        "dirichlet",
        "iid",
        "two-classes",
    ]
    shown = command(*words, "--report")
    assert shown.out.splitlines() == rest.out.splitlines()[-len(shown.out.splitlines()) :]


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
