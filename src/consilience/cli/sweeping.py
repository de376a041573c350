"""The command that runs a grid of configurations, and its live table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.interrupts import stoppable

if TYPE_CHECKING:
    from consilience.sweep import Findings, Place, Study

SweepFile = Annotated[Path, typer.Argument(help="A YAML file with base, grid and cells.", metavar="FILE")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Changes of the base, e.g. rounds=5.", metavar="[KEY=VALUE]...")
]

Minutes = Annotated[
    float | None,
    typer.Option(help="End for now, with the state saved, when so many minutes are over.", min=0),
]


def register(app: typer.Typer) -> None:
    """Add the command of this file to the command line."""
    app.command()(sweep)


def sweep(
    file: SweepFile,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells, and run nothing.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Run cells anew whose configuration has changed.")
    ] = False,
    place: Annotated[str, typer.Option(help="Where cells run: here, or ray.")] = "here",
    cluster: Annotated[
        str, typer.Option(help="Ray's address; auto: this machine's.", metavar="auto|ADDRESS")
    ] = "auto",
    cpus: Annotated[float, typer.Option(help="The cores that a cell takes on Ray.", min=0)] = 1,
    gpus: Annotated[float, typer.Option(help="The GPUs that a cell takes on Ray.", min=0)] = 0,
    minutes: Minutes = None,
) -> None:
    """Run every cell of a grid of configurations; the same command goes on with what is not finished.

    Exit code 1 where a cell has failed, 3 where time was up before the last cell was finished.
    """
    from consilience.cli.screen import console
    from consilience.cli.sweep_display import watch
    from consilience.errors import UserError, unknown
    from consilience.sweep import read_study, run
    from consilience.sweep.on_ray import OnRay

    places: dict[str, Place] = {"here": here(minutes), "ray": OnRay(cluster, cpus, gpus)}
    if place not in places:
        raise unknown("place", place, places)
    if minutes is not None and place != "here":
        raise UserError("--minutes is for cells that run here, not on ray")
    study = read_study(file, overrides or [])
    if dry_run:
        _list(study)
        return
    with stoppable(lambda: "the same command goes on"):
        findings = run(study, place=places[place], watcher=watch(), overwrite=overwrite)
    console().print(findings.table())
    print(f"results: {study.path}")
    leave(findings)


def here(minutes: float | None) -> Place:
    """This process, for so many minutes."""
    from consilience.sweep.places import Here, deadline

    return Here() if minutes is None else Here(deadline(minutes))


def leave(*ended: Findings) -> None:
    """End the command with the code that says how the cells of its sweeps fared."""
    failed = [one for findings in ended for one in findings.failed.items()]
    for name, reason in failed:
        print(f"consilience: cell {name} failed: {reason}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)
    rest = [cell.name for findings in ended for cell, stage, _ in findings.cells if stage != "finished"]
    if rest:
        print(f"consilience: time is up; the same command goes on with {', '.join(rest)}", file=sys.stderr)
        raise typer.Exit(3)


def _list(study: Study) -> None:
    """Print the cells and how far each of them is; those that would be refused say why."""
    for cell in study.cells:
        changed = cell.changed
        why = f" ({changed[0]} was {changed[1]!r}, now it is {changed[2]!r})" if changed else ""
        print(f"{'changed' if changed else cell.stage:<9} {cell.name}{why}")
    finished = sum(cell.stage == "finished" for cell in study.cells)
    print(f"{len(study.cells)} cells, {finished} finished; folder: {study.path}")
