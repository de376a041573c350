"""Where cells run: one after the other in this process, or anywhere that keeps to the same contract."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from consilience.errors import Paused, UserError, described, interrupt_of
from consilience.experiment import Arm, Result, resume, run
from consilience.experiment.folder import CONFIG, RunFolder
from consilience.experiment.progress import Clock
from consilience.experiment.stopping import Pause, never
from consilience.sweep.cells import Cell, Stage


@dataclass(frozen=True)
class Progress:
    """How far a cell is."""

    rounds: int
    """The rounds that it has done, of all its methods and settings."""
    of: int
    """The rounds that it will have done at its end."""
    score: str
    """The last score, in words; nothing where there is none yet."""


class Watcher:
    """Told how cells fare; the base class keeps quiet."""

    def start(self, cells: Sequence[Cell], stages: Sequence[Stage]) -> None:
        """The sweep begins, or goes on: its cells, and how far each of them is."""

    def began(self, cell: Cell) -> None:
        """A cell is at work."""

    def progress(self, cell: Cell, progress: Progress) -> None:
        """A cell has done a round."""

    def ended(self, cell: Cell, reason: str) -> None:
        """A cell is finished, or has failed for a reason."""

    def paused(self, cell: Cell) -> None:
        """Time is up: a cell has saved its state, and goes on when the sweep does."""

    def finish(self) -> None:
        """The sweep ends, or is interrupted."""


class Place(Protocol):
    """A place to run cells. All it needs of a cell is `attempt`, and the cell's folder."""

    def run(self, cells: Sequence[Cell], watcher: Watcher) -> None:
        """Run every cell, and tell the watcher when each begins, goes on and ends."""


@dataclass(frozen=True)
class Here(Place):
    """This process, in which one cell runs after the other."""

    pause: Pause = never
    """Asked before every cell and after every round whether to end for now, with the state saved."""

    def run(self, cells: Sequence[Cell], watcher: Watcher) -> None:
        for cell in cells:
            if self.pause():
                return
            watcher.began(cell)
            try:
                reason = attempt(cell, functools.partial(watcher.progress, cell), self.pause)
            except Paused:
                watcher.paused(cell)
                return
            watcher.ended(cell, reason)


def deadline(minutes: float) -> Pause:
    """What says to pause when so many minutes from now are over."""
    end = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() > end


Tell = Callable[[Progress], object]


def attempt(cell: Cell, tell: Tell, pause: Pause = never) -> str:
    """Run a cell, or go on with it from its checkpoint.

    Args:
        cell: What to run.
        tell: What is called after every round.
        pause: Asked after every round whether to save the state and raise `Paused`.

    Returns:
        Why it failed, in one line; nothing where it is finished.
    """
    try:
        cell.begin()
        cell.conclude(_carried_out(cell, tell, pause))
    except Paused:
        raise
    except Exception as error:  # whatever it is, the other cells go on
        if interrupt := interrupt_of(error):
            raise interrupt from error
        reason = " ".join(str(error).split()) if isinstance(error, UserError) else described(error)
        cell.fail(reason, traceback.format_exc())
        return reason
    return ""


def _carried_out(cell: Cell, tell: Tell, pause: Pause) -> Result:
    listener = _Teller(tell)
    if (cell.path / CONFIG).exists():
        return resume(cell.path, listener, pause=pause)
    return run(cell.config(), folder=RunFolder(cell.path), listener=listener, pause=pause)


class _Teller(Clock):
    """Tells after every round how far a cell is."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._done = 0

    def resumed(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self._done += 1

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self._done += 1
        score = f"test_{self.metric.name}"
        found = [line[score] for line in self.best(lines, score) if line.get(score) is not None]
        shown = self.metric.shown_with_unit(fmean(found)) if found else ""
        total = sum(one.config.rounds for one in self.arms)
        self._tell(Progress(self._done, total, shown))
