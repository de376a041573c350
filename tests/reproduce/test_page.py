"""The page: current, with what was measured and what was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consilience.reproduce import Recipe, find_recipe, recipe_files, results_page
from consilience.reproduce.page import recipe_page, table_page
from consilience.reproduce.raw import RESULTS, Raw, keep

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_repository_is_current(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    made = results_page([find_recipe(file) for file in recipe_files()], RESULTS)
    assert Path("RESULTS.md").read_text() == made, "run python tools/make_results.py"


def test_ours_stand_beside_the_papers(recipe: Recipe, raw: Callable[..., Raw], tmp_path: Path):
    keep(
        raw({"fedavg": [[0.1, 0.5]] * 3, "hwa": [[0.2, 0.6], [0.2, 0.7], [0.3, 0.8]]}),
        tmp_path / "table" / "first",
    )
    lines = results_page([recipe], tmp_path).splitlines()
    assert "| FedAvg | 50.00 ± 0.00 (90.50) |" in lines
    assert "| HWA | 70.00 ± 10.00 (91) |" in lines
    assert "| HWA | 1, 1, 1 (3) | 2, 2, 2 (–) |" in lines
    assert "| FedAvg | 2, 2, 2 | 2, 2, 2 |" in lines
    assert "| [A table](#a-table) | HWA is more accurate | holds |" in lines
    assert any(
        line.startswith("- **holds**: HWA is more accurate (") and line.endswith(" As expected.")
        for line in lines
    )
    assert any(line.startswith("| one-way analysis of variance, p | 0.02") for line in lines)
    assert (
        f"- [first]({tmp_path}/table/first): 2 s on a machine (fp32, torch 2), rounds 2 instead of 3" in lines
    )
    assert "- `second`: not measured yet" in lines


def test_a_round_or_score_that_a_finished_run_never_had_is_told_from_one_that_is_to_come(
    recipe: Recipe, raw: Callable[..., Raw]
):
    table = replace(recipe.tables[0], columns={"second": {"round": 2}})
    begun = raw({"fedavg": [[0.1]]}, planned=2, finished=False)
    over = raw({"fedavg": [[0.1]]}, planned=1)
    assert "| FedAvg | not measured yet |" in table_page(replace(table, paper={}), {"first": begun})
    assert "| FedAvg | no round 2 |" in table_page(replace(table, paper={}), {"first": over})
    other = replace(table, columns={"end": {"score": "trained_acuracy"}}, paper={})
    assert "| FedAvg | no trained_acuracy |" in table_page(other, {"first": over})
    assert "| FedAvg | not measured yet |" in table_page(other, {"first": begun})


def test_what_a_recipe_says_about_verdicts_is_not_said_about_other_runs(recipe: Recipe):
    page = recipe_page(recipe, {})
    assert "As expected" not in page
    assert page.count("not measured yet (9") == 2
