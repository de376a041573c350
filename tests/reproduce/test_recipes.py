"""Recipes: those of the repository are read, and mistakes in one are found before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consilience.errors import UserError
from consilience.reproduce import find_recipe, read_recipe, recipe_files
from consilience.reproduce.raw import RESULTS

ROOT = Path(__file__).parents[2]
FILES = recipe_files(ROOT / "benchmarks" / "papers")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_of_the_repository_is_understood(file: Path, tmp_path: Path):
    recipe = read_recipe(file)
    whole = recipe.study(out=tmp_path, kept=tmp_path)
    quick = recipe.study(out=tmp_path, quick=True)
    after_others = {cell["label"] for cell in recipe.given["cells"] if "best_of" in cell}
    for study in (whole, quick):
        assert [cell.name for cell in study.cells] == [n for n in recipe.cells if n not in after_others]
    assert {cell.path.parent for cell in whole.cells} == {tmp_path / recipe.name}
    assert {cell.path.parent for cell in quick.cells} == {tmp_path / "quick" / recipe.name}
    assert all(cell.values["data"]["name"].endswith(":few") for cell in quick.cells)
    assert recipe.tables
    assert recipe.claims
    shown = {cell for table in recipe.tables for cell in table.cells}
    assert shown == set(recipe.cells)


def test_raw_results_that_are_kept_belong_to_a_recipe():
    for folder in (ROOT / RESULTS).iterdir():
        recipe = read_recipe(ROOT / "benchmarks" / "papers" / f"{folder.name}.yaml")
        assert {cell.name for cell in folder.iterdir()} <= set(recipe.cells)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: A table", "titel: A table", "unknown key of a recipe 'titel'; did you mean 'title'"),
        ("paper: Somebody", "about: Something", "paper is missing"),
        ("label: second", "labels: second", r"cells\[1\]: a cell of a recipe has a label"),
        (
            "where: {cell: first}",
            "where: {cell: frist}",
            "table 'scores': unknown cell 'frist'; did you mean",
        ),
        ("{end: star}", "{end: {seting: star}}", "unknown selector 'seting'; did you mean 'setting'"),
        ("HWA: [91]}", "HWA: [91, 92]}", r"tables\[0\].paper.HWA: 2 figures, 1 columns"),
        ("paper: {HWA:", "paper: {HAW:", r"tables\[1\].paper: unknown row 'HAW'; did you mean 'HWA'"),
        ("ahead: HWA, of: FedAvg}", "ahead: HWA, of: FedAgv}", "unknown row of a claim 'FedAgv'"),
        ("tables: rounds", "tables: round", "unknown table of a claim 'round'"),
        (", alike: 1.0", "", "claim 'Both are alike': give either ahead and of, or alike"),
        ("title: A table", "title: [A]", r"title: Input should be a valid string, not \['A'\]"),
        ("  - title: scores", "  - 5\n  - title: scores", r"tables.0: Input should be"),
        ("  - title: scores\n   ", "  -", r"tables\[0\]: title is missing"),
        ("columns: {end: star}", "columns: star", "tables.0.columns: Input should be a valid dictionary"),
        ("{end: star}", "{end: {round: x}}", r"tables\[0\].columns.end: round: Input should be a valid int"),
        (
            "where: {cell: first}",
            "where: {cell: [first]}",
            r"tables\[0\].where: cell: Input should be a valid",
        ),
        ("HWA: [91]}", "HWA: 91}", "tables.0.paper.HWA: Input should be a valid list, not 91"),
        ("HWA: [91]}", "HWA: [x]}", "tables.0.paper.HWA.0: Input should be a valid number, not 'x'"),
        ("says: HWA is more accurate, ", "", r"claims\[0\]: says is missing"),
        (
            "ahead: HWA, of: FedAvg}",
            "ahead: 0.5, of: FedAvg}",
            "claims.1.ahead: Input should be a valid string",
        ),
        ("quick: {rounds: 1, seeds: [0]}", "quick: 5", "quick: Input should be a valid dictionary, not 5"),
    ],
)
def test_mistakes_are_one_line(file: Path, old: str, new: str, message: str):
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=f"^{file}: .*{message}"):
        read_recipe(file)


def test_a_quick_cell_has_other_values_where_the_recipe_says_so(file: Path, tmp_path: Path):
    file.write_text(file.read_text().replace("{rounds: 1,", "{rounds: 1, local: {steps: 2}, "))
    text = file.read_text().replace("clients: 3}", "clients: 3, local.batch_size: 4}")
    file.write_text(text)
    first, second = read_recipe(file).study(out=tmp_path, quick=True).cells
    assert (first.values["rounds"], first.values["seeds"], first.values["clients"]) == (1, [0], 2)
    assert (second.values["local"], second.values["clients"]) == ({"steps": 2}, 3)


def test_a_recipe_is_found_by_its_name_in_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
):
    monkeypatch.chdir(ROOT)
    assert find_recipe("hwa-table1").file == Path("benchmarks/papers/hwa-table1.yaml")
    with pytest.raises(UserError, match=r"unknown recipe 'hwa-tabel1'; did you mean 'hwa-table1'"):
        find_recipe("hwa-tabel1")
    os.chdir(tmp_path)
    assert find_recipe(file).name == "table"
    with pytest.raises(UserError, match="run this in a clone of the repository, or name a file"):
        find_recipe("hwa-table1")
