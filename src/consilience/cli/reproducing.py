"""The command that runs papers' tables again and shows them beside the papers'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.interrupts import stoppable
from consilience.cli.sweeping import Minutes, here, leave

if TYPE_CHECKING:
    from consilience.reproduce import Recipe
    from consilience.reproduce.raw import Raw
    from consilience.sweep import Cell, Findings, Place, Study

OUT = Path("runs") / "papers"


def register(app: typer.Typer) -> None:
    """Add the command of this file to the command line."""
    app.command()(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A recipe of benchmarks/papers, the path of one, or all.", metavar="[NAME]"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes of the recipe, e.g. precision=tf32.", metavar="[KEY=VALUE]..."),
    ] = None,
    cells: Annotated[
        list[str] | None, typer.Option("--cell", help="Run this cell alone; may be given several times.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds, from 0 on.", min=1)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Something small of it, on the bundled sample: does it run?")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, or cuda.")] = None,
    minutes: Minutes = None,
    out: Annotated[Path, typer.Option(help="Where runs go: OUT/NAME/CELL.")] = OUT,
    keep: Annotated[
        Path | None, typer.Option(help="Where raw results are kept, small enough for a repository.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Run cells anew whose configuration has changed.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Show what is there, and run nothing.")] = False,
) -> None:
    """Run a paper's table, cell by cell, and show it beside the paper's; the same command goes on.

    Without a name, the recipes are listed. Exit code 1 where a cell has failed, 3 where time was up.
    """
    from consilience.errors import UserError
    from consilience.reproduce import find_recipe, recipe_files

    if name is None:
        _list()
        return
    if quick and keep is not None:
        raise UserError("--keep is for what a recipe measures, not for --quick")
    changes = [*(overrides or []), *([f"device={device}"] if device else [])]
    changes += [f"seeds={[*range(seeds)]}"] if seeds else []
    recipes = [find_recipe(path) for path in recipe_files()] if name == "all" else [find_recipe(name)]
    orders = [_Order(recipe, changes, tuple(cells or ()), quick, out, keep) for recipe in recipes]
    for order in orders:
        order.check()  # before anything runs
    place = here(minutes)
    ended = [_carried_out(order, place, overwrite=overwrite, report=report) for order in orders]
    leave(*(findings for findings in ended if findings is not None))


@dataclass(frozen=True)
class _Order:
    """A recipe, and what is asked for of it."""

    recipe: Recipe
    changes: list[str]
    cells: tuple[str, ...]
    quick: bool
    out: Path
    keep: Path | None

    def study(self) -> Study:
        """The cells that can be run as things are: others take the best of one that is not finished."""
        from consilience.reproduce.recipes import chosen_cells

        study = self.recipe.study(self.changes, out=self.out, quick=self.quick)
        return chosen_cells(self.recipe, study, self.cells)

    def check(self) -> None:
        """Refuse what makes no sense, and to keep what is not what the recipe says."""
        from consilience.errors import UserError
        from consilience.reproduce.settings import differences

        study = self.study()
        if self.keep is None:
            return
        wanted = {cell.name: cell.written for cell in self.recipe.study(out=self.out).cells}
        for cell in study.cells:
            if unlike := differences(cell.written, wanted[cell.name]):
                raise UserError(f"--keep is for what the recipe says, but {cell.name} has {unlike[0]}")

    def result(self, cell: Cell) -> Raw | None:
        """The raw results of a cell, kept where that is asked for; None where there are none."""
        from consilience.reproduce import raw

        found = raw.of_run(cell.path)
        if found is not None and self.keep is not None:
            raw.keep(found, self.keep / self.recipe.name / cell.name)
        return found


def _carried_out(order: _Order, place: Place, *, overwrite: bool, report: bool) -> Findings | None:
    """Run what is not finished, cells that take the best of others after these, and show what is there."""
    from consilience.reproduce.page import recipe_page

    findings, known = None, 0
    try:
        while not report and len((study := order.study()).cells) > known:
            known = len(study.cells)
            findings = _run(study, place, order, overwrite=overwrite)
    finally:
        found = {cell.name: order.result(cell) for cell in order.study().cells}  # of an interrupted run, too
    print(recipe_page(order.recipe, {name: one for name, one in found.items() if one is not None}))
    return findings


def _run(study: Study, place: Place, order: _Order, *, overwrite: bool) -> Findings:
    from consilience.cli.sweep_display import watch
    from consilience.reproduce.keeping import Keeping
    from consilience.sweep import run

    with stoppable(lambda: "the same command goes on"):
        return run(study, place=place, watcher=Keeping(watch(), order.result), overwrite=overwrite)


def _list() -> None:
    """Print the recipes and their cells."""
    from consilience.errors import UserError
    from consilience.reproduce import find_recipe, recipe_files
    from consilience.reproduce.recipes import FOLDER

    files = recipe_files()
    if not files:
        raise UserError(f"there are no recipes in {FOLDER}: run this in a clone of the repository")
    for file in files:
        recipe = find_recipe(file)
        print(f"{recipe.name:<16} {recipe.title}")
        print(f"{'':<16} cells: {', '.join(recipe.cells)}")
