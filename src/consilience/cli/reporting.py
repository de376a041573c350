"""The commands about runs that are there: a page, a table, a list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunPaths = Annotated[
    list[Path], typer.Argument(help="Folders of runs, or folders that hold such.", metavar="RUN...")
]
Targets = Annotated[
    list[float] | None,
    typer.Option(
        "--target", help="A score to reach, e.g. 0.9; several times for several. Else the runs' own."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.command()(report)
    app.command()(compare)
    app.command("list")(list_runs)


def report(
    paths: RunPaths,
    to: Annotated[
        Path | None,
        typer.Option(help="The file, or its folder; by default report.html in the run's, of several here."),
    ] = None,
    target: Targets = None,
) -> None:
    """Write one page about runs, which shows curves, tables, tests and maps, and needs no network."""
    from consilience.errors import printable
    from consilience.experiment.reporting import report as write

    print(printable(f"report: {write(paths, to, target)}"))


def compare(
    paths: RunPaths,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print a table for LaTeX (booktabs).")] = False,
    target: Targets = None,
) -> None:
    """Print the methods of runs side by side, with the best in bold, and tests between them."""
    from consilience.cli.screen import console
    from consilience.errors import UserError
    from consilience.experiment.reporting import compared
    from consilience.report.comparing import tables
    from consilience.report.papers import csv_text, latex_text

    if as_csv and latex:
        raise UserError("choose --csv or --latex")
    _, groups = compared(paths, target)
    if as_csv or latex:
        print((csv_text if as_csv else latex_text)(groups), end="")
        return
    for part in tables(groups):
        console(80).print(part)


def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, also in folders below.")] = Path("runs"),
) -> None:
    """List the runs in a folder: their methods, rounds, seeds, best score, date, digest and state."""
    from consilience.cli.screen import console
    from consilience.errors import UserError, printable
    from consilience.experiment.reading import find_runs, list_run
    from consilience.report.listing import run_table

    found = find_runs(folder)
    if not found:
        raise UserError(f"there are no runs in {folder}")
    names = [printable(str(path.relative_to(folder) if path != folder else path)) for path in found]
    console(110).print(run_table([list_run(path, name) for path, name in zip(found, names, strict=True)]))
