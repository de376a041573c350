"""The recipe of a table: a sweep whose cells compute it, what the paper has, and what the paper claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.config.files import read_values
from consilience.errors import UserError, abridged, unknown
from consilience.reproduce.form import Selection, check_recipe, check_selection
from consilience.sweep.reading import KEYS, Study, study_of

FOLDER = Path("benchmarks") / "papers"
"""Where recipes are, in a clone of the repository."""
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
    def in_rounds(self) -> bool:
        """Whether figures are rounds to a target, of which fewer are better."""
        return any("target" in one for one in (*self.rows.values(), *self.columns.values()))

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
    ahead: str
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

    def study(self, overrides: Sequence[str] = (), *, out: Path | None = None, quick: bool = False) -> Study:
        """The sweep of its cells."""
        given = {**self.given, "name": self.name}
        if quick:
            # Recording a step is dearer than a few of them.
            changes = {"executor": "sequential", **self.quick}
            given["cells"] = [_quicker(cell, changes) for cell in given["cells"]]
        if out is not None:
            given["out"] = str(out / "quick" if quick else out)
        return study_of(given, self.file, overrides)


def _quicker(cell: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A cell with some changes, which take the place of its own values of these keys and below."""
    kept = {
        key: value
        for key, value in cell.items()
        if not any(f"{key}.".startswith(f"{changed}.") for changed in changes)
    }
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
    """Refuse cells without a name, and tables that show another one."""
    cells = recipe.given["cells"]
    for number, cell in enumerate(cells):
        if "label" not in cell:
            raise UserError(f"cells[{number}]: a cell of a recipe has a label, by which it is called")
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
    of = tuple(_listed(given.get("of", [])))
    for kind, names, there in (
        ("column", columns, {c for t in chosen for c in t.columns}),
        ("row", (*([given["ahead"]] if "ahead" in given else []), *of), {r for t in chosen for r in t.rows}),
    ):
        for name in names:
            if name not in there:
                raise UserError(f"claims[{number}]: {unknown(f'{kind} of a claim', name, there)}")
    if ("ahead" in given) == ("alike" in given):
        raise UserError(f"claim {abridged(given['says'])}: give either ahead and of, or alike")
    return Claim(
        given["says"],
        about,
        columns,
        given.get("ahead", ""),
        of,
        given.get("alike"),
        given.get("note", "").strip(),
    )


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def chosen_cells(study: Study, names: Sequence[str]) -> Study:
    """The sweep with some of its cells alone; all where none is named."""
    known = [cell.name for cell in study.cells]
    for name in names:
        if name not in known:
            raise unknown("cell", name, known)
    return replace(study, cells=tuple(cell for cell in study.cells if not names or cell.name in names))
