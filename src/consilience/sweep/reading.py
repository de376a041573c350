"""The file of a sweep: a base configuration, and the keys that its cells vary."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.config.config import read_config
from consilience.config.files import read_values
from consilience.config.overrides import apply, change, check_effect
from consilience.errors import UserError, abridged, kind_of, unknown
from consilience.sweep.cells import ASIDE, Cell
from consilience.sweep.naming import name_of

KEYS = ("name", "out", "base", "grid", "cells", "apart")
"""What the file of a sweep may say."""
PLACES = ("name", "out")
"""Keys of a configuration that say where a run's folder is: a cell's is the sweep's affair."""
MOST_CELLS = 10_000
"""How many combinations a grid may have, and how many cells a sweep."""
CARRIED = ("solver", "schedule", "method")
"""The parts whose numbers lanes can carry: all values of one share a computation."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._=,-]*"
"""What the name of a sweep, or the label of a cell, looks like."""

Varied = dict[str, object]
"""Values by dotted key."""


@dataclass(frozen=True)
class Study:
    """A sweep as it was read: where it goes, and its cells."""

    name: str
    path: Path
    """The sweep's folder; every cell has one inside."""
    cells: tuple[Cell, ...]


def read_study(file: str | Path, overrides: Sequence[str] = ()) -> Study:
    """The sweep of a file. Whatever can be refused without data is refused here, for all cells.

    Args:
        file: A YAML file with `base` (a path or keys of a configuration), `grid` (lists of values by dotted
            key) and `cells` (such keys with one value each).
        overrides: Changes of the base as `key=value`; `name` and `out` are the sweep's own.
    """
    file = Path(file)
    return study_of(read_values(file), file, overrides)


def study_of(given: dict[str, Any], file: Path, overrides: Sequence[str] = ()) -> Study:
    """The sweep that the contents of a file stand for; see `read_study`."""
    try:
        return _study(given, file, overrides)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _study(given: dict[str, Any], file: Path, overrides: Sequence[str]) -> Study:
    for key in given:
        if key not in KEYS:
            raise unknown("key of a sweep", str(key), KEYS)
    base = _base(given.get("base", {}), file)
    whole = [text for text in overrides if text.partition("=")[0] in PLACES]
    rest = [text for text in overrides if text not in whole]
    for number, text in enumerate(rest):
        check_effect(base, text)
        apply(base, text, {earlier.partition("=")[0] for earlier in rest[:number]})
    own = {"out": base.get("out", "runs"), "name": file.stem, **{k: given[k] for k in PLACES if k in given}}
    for text in whole:
        apply(own, text, set())
    if not isinstance(own["name"], str) or not re.fullmatch(NAME, own["name"]):
        raise UserError(
            f"name: {abridged(own['name'])} cannot be a folder's: letters, digits and . _ = , - can"
        )
    if not isinstance(own["out"], str):
        raise UserError(f"out: expected a folder, not {abridged(own['out'])}")
    path = Path(own["out"]).resolve() / own["name"]
    grid = _grid(given.get("grid", {}))
    further = list(_listed(given.get("cells", [])))
    apart = given.get("apart", False)
    if not isinstance(apart, bool):
        raise UserError(f"apart: true or false, not {abridged(apart)}")
    crossed = grid if apart else _folded(base, grid, path)
    carried = tuple(key for key in grid if crossed[key] is not grid[key])
    cells = [
        replace(_cell(base, varied, path), carried=carried)
        for varied in (_product(crossed) if crossed else [])
    ]
    cells += [_cell(base, varied, path, label) for label, varied in further]
    if not cells:
        raise UserError("there is nothing to run: give grid or cells")
    for name, count in Counter(cell.name for cell in cells).items():
        if count > 1:
            raise UserError(f"two cells would both be called {name}; give one of cells a label")
    for text in rest:
        _check_override(text, cells)
    return Study(own["name"], path, tuple(cells))


def _base(given: object, file: Path) -> dict[str, Any]:
    """The configuration that cells vary; a path is one beside the file."""
    if isinstance(given, str):
        try:
            return read_values(file.parent / given)
        except UserError as error:
            raise UserError(f"base: {error}") from None
    if not isinstance(given, dict):
        raise UserError(f"base: expected a path or keys of a configuration, not {kind_of(given)}")
    return given


def _grid(given: object) -> dict[str, list[object]]:
    """The lists of values by key."""
    if not isinstance(given, Mapping):
        raise UserError(f"grid: expected lists of values by key, not {kind_of(given)}")
    lists: dict[str, list[object]] = {}
    for key, values in given.items():
        _check_key(f"grid.{key}", key)
        if not isinstance(values, list) or not values:
            raise UserError(f"grid.{key}: expected a list of values, not {abridged(values)}")
        told = [repr(value) for value in values]
        if len(set(told)) != len(told):
            raise UserError(f"grid.{key}: {abridged(values)} names a value twice")
        lists[key] = values
    _check_cells("grid", math.prod(map(len, lists.values())))
    return lists


def _check_cells(what: str, count: int) -> None:
    """Refuse more cells than anybody runs, before they are made."""
    if count > MOST_CELLS:
        raise UserError(f"{what}: {count:,} combinations, and {MOST_CELLS:,} are the most in one sweep")


def _listed(given: object) -> Iterator[tuple[str | None, Varied]]:
    """The cells that are given one by one, each with its label, if it has one."""
    if not isinstance(given, list):
        raise UserError(f"cells: expected a list, not {kind_of(given)}")
    _check_cells("cells", len(given))
    for number, item in enumerate(given):
        if not isinstance(item, Mapping) or not item.keys() - {"label"}:
            raise UserError(f"cells[{number}]: expected keys and values, not {abridged(item)}")
        label = item.get("label")
        if label is not None and not re.fullmatch(NAME, str(label)):
            raise UserError(f"cells[{number}]: label {abridged(label)} cannot be a folder's name")
        varied = {key: value for key, value in item.items() if key != "label"}
        for key in varied:
            _check_key(f"cells[{number}].{key}", key)
        yield None if label is None else str(label), varied


def _check_key(where: str, key: str) -> None:
    if not key:
        raise UserError(f"{where}: expected a dotted key of a configuration, e.g. solver.lr")
    if key in PLACES:
        raise UserError(f"{where}: cells have folders by what they vary; {key} is a key of the sweep itself")


def _check_override(text: str, cells: Sequence[Cell]) -> None:
    """Refuse an override of the base that every cell overrides in turn."""
    path = text.partition("=")[0]
    if all(any(f"{path}.".startswith(f"{key}.") for key in cell.varied) for cell in cells):
        raise UserError(f"override {abridged(text)} has no effect: every cell sets it")


def _product(grid: Mapping[str, list[object]]) -> Iterator[Varied]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _folded(base: Mapping[str, Any], grid: dict[str, list[object]], path: Path) -> dict[str, list[object]]:
    """The grid in which lists that lanes can carry are single values: one cell has all of the list.

    Whether they can is what reading the cells so tells: a list that is no sweep there is refused.
    """
    folded = grid
    for key, values in grid.items():
        if len(values) < 2 or not _is_carried(key, values):
            continue
        trial: dict[str, list[object]] = {**folded, key: [values]}
        try:
            for varied in _product(trial):
                _cell(base, varied, path)
        except UserError:
            continue
        folded = trial
    return folded


def _is_carried(key: str, values: list[object]) -> bool:
    """Whether a list of values may be something that one run can compute side by side."""
    if key == "seeds":
        return all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return key.partition(".")[0] in CARRIED and "." in key and all(map(_is_number, values))


def _is_number(value: object) -> bool:
    """Whether a value is a number, or a text that stands for one: YAML reads 1e-3 as such."""
    try:
        return (
            not isinstance(value, bool) and isinstance(value, int | float | str) and bool(str(float(value)))
        )
    except ValueError:
        return False


def _cell(base: Mapping[str, Any], varied: Varied, path: Path, label: str | None = None) -> Cell:
    """A cell, whose configuration has been read once."""
    values = copy.deepcopy(dict(base))
    name = label or name_of(varied)
    told: set[str] = set()
    try:
        for key in sorted(varied, key=lambda key: key.count(".")):  # a part before its options
            text = f"{key}={varied[key]}"
            check_effect(values, text)
            change(values, key, copy.deepcopy(varied[key]), text, told)
            told.add(key)
    except UserError as error:
        raise UserError(f"cell {name}: {error}") from None
    values |= {"name": name, "out": str(path)}
    config = read_config(values, f"cell {name}")
    config.settings()  # those of `compare` are read here
    written = {key: value for key, value in config.written().items() if key not in ASIDE}
    return Cell(name, varied, values, json.loads(json.dumps(written)), path / name)
