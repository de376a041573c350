"""One page about runs, from what lies in their folders."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from consilience.errors import UserError
from consilience.experiment.folder import REPORT, atomic_write
from consilience.experiment.reading import read_runs
from consilience.report.page.collecting import collect
from consilience.report.page.rendering import render
from consilience.report.runs import Group, Run, grouped

LOG = logging.getLogger("consilience")


def report(paths: Iterable[Path], to: Path | None = None, targets: Sequence[float] | None = None) -> Path:
    """Write a page about runs, and return where it is.

    Args:
        paths: Folders of runs, or folders that hold such.
        to: The file, or the folder for report.html; by default that of a single run, else the working
            directory.
        targets: Values of the metric to look for; by default those of the runs.
    """
    runs, groups = compared(paths, targets)
    usual = (runs[0].path if len(runs) == 1 else Path()) / REPORT
    file = usual if to is None else to / REPORT if to.is_dir() else to
    if file.suffix != ".html":
        raise UserError(f"{file} would be a page, so that its name must end in .html")
    if not file.parent.is_dir():
        raise UserError(f"there is no folder {file.parent} to write {file.name} to")
    atomic_write(file, render(collect(runs, groups)).encode())
    return file


def compared(paths: Iterable[Path], targets: Sequence[float] | None = None) -> tuple[list[Run], list[Group]]:
    """The runs in some folders that have begun, and their methods in groups that can be compared."""
    given = list(paths)
    runs = read_runs(given)
    begun = [run for run in runs if run.records]
    if not begun:
        raise UserError(f"{', '.join(map(str, given))}: no round has been recorded yet")
    for run in runs:
        if not run.records:
            LOG.warning("%s has no round yet and is left out", run.path)
    return begun, grouped(begun, targets)
