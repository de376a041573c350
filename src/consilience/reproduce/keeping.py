"""Raw results are kept whenever a cell ends or pauses, so that what kills the command later loses none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consilience.sweep import Cell, Watcher
from consilience.sweep.cells import Stage
from consilience.sweep.places import Progress


class Keeping(Watcher):
    """Passes on what it is told, and calls a function after every cell."""

    def __init__(self, shown: Watcher, keep: Callable[[Cell], object]) -> None:
        self._shown, self._keep = shown, keep

    def start(self, cells: Sequence[Cell], stages: Sequence[Stage]) -> None:
        self._shown.start(cells, stages)

    def began(self, cell: Cell) -> None:
        self._shown.began(cell)

    def progress(self, cell: Cell, progress: Progress) -> None:
        self._shown.progress(cell, progress)

    def ended(self, cell: Cell, reason: str) -> None:
        self._keep(cell)
        self._shown.ended(cell, reason)

    def paused(self, cell: Cell) -> None:
        self._keep(cell)
        self._shown.paused(cell)

    def finish(self) -> None:
        self._shown.finish()
