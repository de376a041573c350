"""What a cell computes: how it differs from its recipe, and the best numbers of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consilience.errors import UserError
from consilience.reproduce import Recipe, read_recipe
from consilience.reproduce.raw import Raw, keep
from consilience.reproduce.settings import best_of, differences, small_grid


def test_other_computations_differ_and_other_places_do_not(recipe: Recipe, tmp_path: Path):
    def written(*changes: str) -> dict[str, object]:
        return recipe.study(changes, out=tmp_path).cells[0].written

    wanted = written()
    assert differences(written("device=cpu", "precision=tf32", "seeds=[0]", "note=slow"), wanted) == []
    found = differences(written("rounds=2", "local.batch_size=5"), wanted)
    assert found == ["rounds 2 instead of 3", "local.batch_size 5 instead of 32"]
    (one,) = differences({**wanted, "method": wanted["method"][:1]}, wanted)  # type: ignore[index]
    assert one.startswith("method [")
    assert differences({key: wanted[key] for key in ("rounds",)}, wanted) == []  # an older version


def test_settings_that_are_compared_count_too():
    one = {"rounds": 3, "compare": [{"local": {"epochs": 1}}, {"local": {"epochs": 2}}]}
    other = {"rounds": 3, "compare": [{"local": {"epochs": 1}}, {"local": {"epochs": 5}}]}
    assert differences(one, other) == ["local.epochs 2 instead of 5"]
    assert differences({"rounds": 3, "compare": []}, other) == ["0 settings instead of 2"]


GRID = """
  - label: grid
    seeds: [0]
    compare: [{label: star, method: {name: fedprox, mu: [0.1, 1]}, solver: {name: sgd, lr: [0.1, 0.2]}}]
  - {label: best, best_of: grid}
"""
CURVES = {"mu=0.1 lr=0.1": [[0.9, 0.5]], "mu=1 lr=0.1": [[0.1, 0.6]], "mu=1 lr=0.2": [[0.9, None]]}
SWEPT = {
    "mu=0.1 lr=0.1": {"mu": 0.1, "lr": 0.1},
    "mu=1 lr=0.1": {"mu": 1, "lr": 0.1},
    "mu=1 lr=0.2": {"mu": 1, "lr": 0.2},
}


@pytest.fixture
def searched(file: Path) -> Recipe:
    file.write_text(file.read_text().replace("quick:", f"{GRID.strip(chr(10))}\nquick:", 1))
    return read_recipe(file)


def test_the_best_numbers_at_the_end_take_the_place_of_lists(raw: Callable[..., Raw]):
    compare = [
        {
            "label": "star",
            "method": {"name": "fedprox", "mu": [0.1, 1]},
            "solver": {"name": "sgd", "lr": [0.1, 0.2]},
        }
    ]
    (found,) = best_of(compare, raw(CURVES, **SWEPT))
    assert found == {
        "label": "star",
        "method": {"name": "fedprox", "mu": 1},
        "solver": {"name": "sgd", "lr": 0.1},
    }
    assert compare[0]["method"] == {"name": "fedprox", "mu": [0.1, 1]}


def test_a_list_of_one_number_is_that_number(raw: Callable[..., Raw]):
    compare = [{"label": "star", "method": {"name": "fedprox", "mu": [0.1]}}]
    (found,) = best_of(compare, raw({"fedprox": [[0.5]]}))
    assert found["method"] == {"name": "fedprox", "mu": 0.1}


def test_a_cell_that_takes_the_best_waits_until_the_grid_is_finished(
    searched: Recipe, raw: Callable[..., Raw], tmp_path: Path
):
    def cells() -> list[str]:
        return [cell.name for cell in searched.study(out=tmp_path, kept=tmp_path / "kept").cells]

    assert cells() == ["first", "second", "grid"]
    grid = raw(CURVES, **SWEPT)
    keep(replace(grid, finished=False), tmp_path / "kept" / "table" / "grid")
    assert "best" not in cells()
    keep(grid, tmp_path / "kept" / "table" / "grid")
    (best,) = (c for c in searched.study(out=tmp_path, kept=tmp_path / "kept").cells if c.name == "best")
    (setting,) = best.written["compare"]
    assert (setting["method"][0]["mu"], setting["solver"]["lr"], best.written["seeds"]) == (1, 0.1, [0, 1])


@pytest.mark.parametrize(
    ("grid", "message"),
    [("gird", "unknown cell 'gird'; did you mean 'grid'"), ("first", "cell first has no settings")],
)
def test_mistakes_in_what_is_searched(searched: Recipe, file: Path, grid: str, message: str):
    file.write_text(file.read_text().replace("best_of: grid", f"best_of: {grid}"))
    with pytest.raises(UserError, match=message):
        read_recipe(file)


def test_a_small_grid_has_two_values_of_each_number():
    setting = {
        "label": "one",
        "method": {"name": "fagh", "rho": [1, 0.5, 0.1], "lr": 0.5},
        "solver": {"name": "sgd", "lr": [1, 0.5, 0.1]},
        "model": {"name": "mlp", "hidden": [20, 20, 20]},
    }
    assert small_grid(setting) == {
        **setting,
        "method": {"name": "fagh", "rho": [1, 0.5], "lr": 0.5},
        "solver": {"name": "sgd", "lr": [1, 0.5]},
    }
    assert small_grid({"label": "one", "method": "fagh"}) == {"label": "one", "method": "fagh"}
