"""A whole sweep: what is finished stays, what is not runs, and a table sums up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consilience.experiment.folder import RunFolder
from consilience.sweep.places import Here, Place, Watcher
from consilience.sweep.reading import Study, read_study
from consilience.sweep.table import Findings, findings_of


def run(
    study: Study | str | Path,
    *,
    place: Place | None = None,
    watcher: Watcher | None = None,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
) -> Findings:
    """Run the cells of a sweep that are not finished, and return what came out of all.

    Args:
        study: The sweep, or its file.
        place: Where cells run; by default here, one after the other.
        watcher: What is told how cells fare.
        overrides: Changes of the base as `key=value`, where a file is given.
        overwrite: Whether cells of another configuration are run anew; else they are refused.
    """
    found = study if isinstance(study, Study) else read_study(study, overrides)
    watcher, place = watcher or Watcher(), place or Here()
    folder = RunFolder(found.path)
    with folder.locked():
        for cell in found.cells:
            if overwrite and cell.changed:
                cell.clear()
            cell.check()
        stages = [cell.stage for cell in found.cells]
        todo = [cell for cell, stage in zip(found.cells, stages, strict=True) if stage != "finished"]
        watcher.start(found.cells, stages)
        try:
            place.run(todo, watcher)
        finally:
            watcher.finish()
            findings = findings_of(found)
            findings.write(found.path)
    return findings
