"""The command that runs papers' tables again and shows them beside the papers'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.interrupts import stoppable
from consilience.cli.sweeping import Minutes, here, leave

if TYPE_CHECKING:
    from consilience.reproduce import Recipe
    from consilience.reproduce.raw import Raw
    from consilience.sweep import Findings, Place, Study

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
    from consilience.reproduce import find_recipe, recipe_files
    from consilience.reproduce.page import recipe_page
    from consilience.reproduce.recipes import chosen_cells

    if name is None:
        _list()
        return
    changes = [*(overrides or []), *([f"device={device}"] if device else [])]
    changes += [f"seeds={[*range(seeds)]}"] if seeds else []
    recipes = [find_recipe(path) for path in recipe_files()] if name == "all" else [find_recipe(name)]
    studies = [
        (recipe, chosen_cells(recipe.study(changes, out=out, quick=quick), cells or [])) for recipe in recipes
    ]
    place, ended = here(minutes), []
    for recipe, study in studies:
        if not report:
            ended.append(_run(study, place, overwrite=overwrite))
        print(recipe_page(recipe, _collected(recipe, study, keep)))
    for findings in ended:
        leave(findings)


def _run(study: Study, place: Place, *, overwrite: bool) -> Findings:
    from consilience.cli.sweep_display import watch
    from consilience.sweep import run

    with stoppable(lambda: "the same command goes on"):
        return run(study, place=place, watcher=watch(), overwrite=overwrite)


def _collected(recipe: Recipe, study: Study, keep: Path | None) -> dict[str, Raw]:
    """The raw results of all cells that have some, kept where that is asked for."""
    from consilience.reproduce import raw

    found = {}
    for cell in study.cells:
        one = raw.of_run(cell.path)
        if one is not None:
            found[cell.name] = one
            if keep is not None:
                raw.keep(one, keep / recipe.name / cell.name)
    return found


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
