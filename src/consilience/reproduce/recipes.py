"""The recipe of a table: a sweep whose cells compute it, what the paper has, and what the paper claims."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.config.files import read_values
from consilience.errors import UserError, abridged, unknown
from consilience.reproduce.form import Selection, check_recipe, check_selection
from consilience.reproduce.raw import RESULTS, Raw, of_run, read_raw
from consilience.reproduce.settings import best_of, small_grid
from consilience.sweep.reading import KEYS, Study, study_of

FOLDER = Path("benchmarks") / "papers"
"""Where recipes are, in a clone of the repository."""
BEST_OF = "best_of"
"""What a cell says that has the settings of another one with their best numbers in place of lists."""
OWN = ("title", "paper", "about", "open", "quick", "tables", "claims")
"""What the file of a recipe may say beside what that of a sweep may."""
SELECTORS = tuple(Selection.model_fields)
"""What rows and columns of a table may choose by: where to look, and for what."""
PATTERNS = ("setting", "method")
"""Those whose values are patterns as those of file names; what a row and a column say must both match."""


@dataclass(frozen=True)
class Table:
    """One table of a paper: which results stand where, and the paper's figures."""

    title: str
    rows: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, Mapping[str, Any]]
    paper: Mapping[str, Sequence[float | None]]
    """The paper's figures by row, in the order of columns; None where it has none, or none was reached."""

    def entry(self, row: str, column: str) -> dict[str, Any]:
        """What to look for where a row and a column meet; patterns are lists."""
        both = self.rows[row], self.columns[column]
        patterns = {key: [one[key] for one in both if key in one] for key in PATTERNS}
        return {**both[0], **both[1], **patterns}

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells that it shows something of."""
        found = [self.entry(row, column)["cell"] for row in self.rows for column in self.columns]
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Claim:
    """Something that a paper says, and the comparison that tests it."""

    says: str
    tables: tuple[str, ...]
    columns: tuple[str, ...]
    ahead: tuple[str, ...]
    of: tuple[str, ...]
    alike: float | None
    """Points within which rows count as alike, where that is the claim."""
    note: str = ""


@dataclass(frozen=True)
class Recipe:
    """A table of a paper, ready to be run."""

    name: str
    file: Path
    title: str
    paper: str
    about: str
    open: tuple[str, ...]
    """What the paper does not say, and what was used."""
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    given: Mapping[str, Any]
    """The sweep, as its file would say it."""
    quick: Mapping[str, Any]
    """Changes, by dotted key, that make it small enough for a processor."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of its cells."""
        return tuple(str(cell["label"]) for cell in self.given["cells"])

    def study(
        self, overrides: Sequence[str] = (), *, out: Path, quick: bool = False, kept: Path = RESULTS
    ) -> Study:
        """The sweep of its cells, but for those that take the best of a cell which is not finished.

        Args:
            overrides: Changes of all cells as `key=value`.
            out: Where runs go.
            quick: Whether cells are something small.
            kept: Where raw results of cells are that were run elsewhere.
        """
        out = out / "quick" if quick else out
        cells = self.given["cells"]
        if quick:
            # Recording a step is dearer than a few of them.
            changes = {"executor": "sequential", **self.quick}
            cells = [_quicker(cell, changes) for cell in cells]
        known = {cell["label"]: cell for cell in cells}
        settled = []
        for cell in cells:
            if BEST_OF in cell:
                grid = cell[BEST_OF]
                found = _finished(out / self.name / grid, None if quick else kept / self.name / grid)
                if found is None:
                    continue
                own = {key: value for key, value in cell.items() if key != BEST_OF}
                cell = {**own, "compare": best_of(known[grid]["compare"], found)}  # noqa: PLW2901
            settled.append(cell)
        given = {**self.given, "name": self.name, "out": str(out), "cells": settled}
        return study_of(copy.deepcopy(given), self.file, overrides)  # overrides change the base that is given


def _finished(run: Path, kept: Path | None) -> Raw | None:
    """The raw results of a cell that is finished, of its run or those that were kept."""
    for found in (of_run(run), read_raw(kept) if kept else None):
        if found is not None and found.finished:
            return found
    return None


def _quicker(cell: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A cell with small grids and some changes, which take the place of its own values there and below."""
    kept = {
        key: value
        for key, value in cell.items()
        if not any(f"{key}.".startswith(f"{changed}.") for changed in changes)
    }
    if "compare" in kept:
        kept["compare"] = [small_grid(setting) for setting in kept["compare"]]
    return {**kept, **changes}


def recipe_files(folder: Path = FOLDER) -> list[Path]:
    """The files of all recipes in a folder."""
    return sorted(folder.glob("*.yaml"))


def find_recipe(name: str | Path) -> Recipe:
    """The recipe of a name in this clone, or that of a file."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = FOLDER / f"{name}.yaml"
        known = [file.stem for file in recipe_files()]
        if not known:
            raise UserError(
                f"there are no recipes in {FOLDER}: run this in a clone of the repository, or name a file"
            )
        if str(name) not in known:
            raise unknown("recipe", str(name), known)
    return read_recipe(path)


def read_recipe(file: Path) -> Recipe:
    """The recipe of a file; mistakes in what it says about tables and claims are refused here."""
    given = read_values(file)
    for key in given:
        if key not in (*OWN, *KEYS):
            raise UserError(f"{file}: {unknown('key of a recipe', str(key), (*OWN, *KEYS))}")
    try:
        check_recipe(given)
        tables = tuple(_table(one, number) for number, one in enumerate(given.get("tables", [])))
        recipe = Recipe(
            file.stem,
            file,
            given["title"],
            given["paper"],
            given.get("about", "").strip(),
            tuple(given.get("open", [])),
            tables,
            tuple(_claim(one, number, tables) for number, one in enumerate(given.get("claims", []))),
            {key: value for key, value in given.items() if key in KEYS},
            given.get("quick", {}),
        )
        _check_cells(recipe)
    except KeyError as error:
        raise UserError(f"{file}: {error.args[0]} is missing") from None
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return recipe


def _check_cells(recipe: Recipe) -> None:
    """Refuse cells without a name, and tables and cells that speak of another one."""
    cells = recipe.given["cells"]
    for number, cell in enumerate(cells):
        if not isinstance(cell.get("label"), str):
            raise UserError(f"cells[{number}]: a cell of a recipe has a label, by which it is called")
    for number, cell in enumerate(cells):
        grid = cell.get(BEST_OF)
        if grid is not None and grid not in recipe.cells:
            raise UserError(f"cells[{number}].{BEST_OF}: {unknown('cell', str(grid), recipe.cells)}")
        if grid is not None and "compare" not in cells[recipe.cells.index(grid)]:
            raise UserError(f"cells[{number}].{BEST_OF}: cell {grid} has no settings (compare)")
    for table in recipe.tables:
        for name in table.cells:
            if name not in recipe.cells:
                raise UserError(f"table {table.title!r}: {unknown('cell', name, recipe.cells)}")


def _table(given: Mapping[str, Any], number: int) -> Table:
    """A table; a row or column that is no mapping is a pattern of the method or of the setting."""
    at = f"tables[{number}]"
    for key in ("title", "rows", "columns"):
        if not given.get(key):
            raise UserError(f"{at}: {key} is missing")
    where = _selection(given.get("where", {}), "", f"{at}.where")
    rows = {
        name: {**where, **_selection(one, "method", f"{at}.rows.{name}")}
        for name, one in given["rows"].items()
    }
    columns = {
        name: _selection(one, "setting", f"{at}.columns.{name}") for name, one in given["columns"].items()
    }
    paper = given.get("paper", {})
    table = Table(given["title"], rows, columns, paper)
    for row, figures in paper.items():
        if row not in rows:
            raise UserError(f"{at}.paper: {unknown('row', row, rows)}")
        if len(figures) != len(columns):
            raise UserError(f"{at}.paper.{row}: {len(figures)} figures, {len(columns)} columns")
    for row in rows:
        for column in columns:
            missing = [key for key in ("cell", "method") if not table.entry(row, column).get(key)]
            if missing:
                raise UserError(f"{at}: {row}, {column} does not say which {missing[0]}")
    return table


def _selection(given: Any, usual: str, where: str) -> dict[str, Any]:
    found = dict(given) if isinstance(given, Mapping) else {usual: given}
    try:
        for key in found:
            if key not in SELECTORS:
                raise unknown("selector", key, SELECTORS)
        check_selection(found)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return found


def _claim(given: Mapping[str, Any], number: int, tables: Sequence[Table]) -> Claim:
    """A claim; by default it is about all tables, and all columns."""
    if "says" not in given:
        raise UserError(f"claims[{number}]: says is missing")
    known = [table.title for table in tables]
    about = tuple(_listed(given.get("tables", known)))
    for title in about:
        if title not in known:
            raise UserError(f"claims[{number}]: {unknown('table of a claim', title, known)}")
    chosen = [table for table in tables if table.title in about]
    columns = tuple(_listed(given.get("columns", [*dict.fromkeys(c for t in chosen for c in t.columns)])))
    ahead, of = (tuple(_listed(given.get(key, []))) for key in ("ahead", "of"))
    for kind, names, there in (
        ("column", columns, {c for t in chosen for c in t.columns}),
        ("row", (*ahead, *of), {r for t in chosen for r in t.rows}),
    ):
        for name in names:
            if name not in there:
                raise UserError(f"claims[{number}]: {unknown(f'{kind} of a claim', name, there)}")
    if bool(ahead) == ("alike" in given) or bool(ahead) != bool(of):
        raise UserError(f"claim {abridged(given['says'])}: give either ahead and of, or alike")
    return Claim(
        given["says"],
        about,
        columns,
        ahead,
        of,
        given.get("alike"),
        given.get("note", "").strip(),
    )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def chosen_cells(recipe: Recipe, study: Study, names: Sequence[str]) -> Study:
    """The sweep of a recipe with some of its cells alone; all where none is named."""
    for name in names:
        if name not in recipe.cells:
            raise unknown("cell", name, recipe.cells)
    found = tuple(cell for cell in study.cells if not names or cell.name in names)
    if not found:
        raise UserError(f"cell {names[0]} takes the best of another cell, which is not finished")
    return replace(study, cells=found)
