"""Raw results: small, the same bytes whenever they are kept, and never replaced by less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consilience.errors import UserError
from consilience.reproduce import Recipe
from consilience.reproduce.raw import PACKED, Raw, keep, kept_cells, of_run, read_raw
from consilience.sweep import run

Make = Callable[..., Raw]


def test_a_run_is_kept_and_read_again(recipe: Recipe, tmp_path: Path, unpainted: None):
    study = recipe.study(out=tmp_path / "runs")
    run(study)
    found = of_run(study.cells[0].path)
    assert found is not None
    assert found.finished
    assert len(found.lines) == 2 * 2 * 3  # methods, seeds, rounds
    assert not {"traffic", "nodes", "messages"} & found.lines[0].keys()
    assert str(tmp_path) not in str(found.config)
    assert keep(found, tmp_path / "kept" / "first")
    assert dict(kept_cells(tmp_path / "kept")) == {"first": found}


def test_what_goes_further_is_not_replaced(raw: Make, tmp_path: Path):
    whole = raw({"fedavg": [[0.1, 0.2]]})
    assert keep(whole, tmp_path / "cell")
    assert not keep(replace(whole, finished=False, lines=whole.lines * 2), tmp_path / "cell")
    assert not keep(replace(whole, lines=whole.lines[:1]), tmp_path / "cell")
    assert read_raw(tmp_path / "cell") == whole
    assert keep(whole, tmp_path / "other")
    assert (tmp_path / "cell" / PACKED).read_bytes() == (tmp_path / "other" / PACKED).read_bytes()


def test_what_is_not_there_or_damaged(raw: Make, tmp_path: Path):
    assert read_raw(tmp_path / "nowhere") is None
    assert of_run(tmp_path) is None
    keep(raw({"fedavg": [[0.1]]}), tmp_path / "cell")
    (tmp_path / "cell" / PACKED).write_bytes(b"nothing")
    with pytest.raises(UserError, match="cell is damaged"):
        read_raw(tmp_path / "cell")
