"""One live table of a sweep's cells, or one plain line when a cell begins and ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from consilience.cli.screen import console
from consilience.sweep import Cell, Watcher
from consilience.sweep.cells import Stage
from consilience.sweep.places import Progress
from consilience.sweep.table import scores_of

MARGIN = 6
"""Lines of a screen that the table leaves to its head, its foot and the prompt."""


def watch() -> Watcher:
    """A live table on a terminal, else plain lines."""
    screen = console()
    return LiveTable(screen) if screen.is_terminal else PlainLines()


@dataclass(frozen=True)
class State:
    """What is known of a cell."""

    stage: str
    progress: Progress | None = None
    note: str = ""
    """The scores of a cell that is finished, or why it failed."""
    begun: float | None = None
    took: float | None = None


class Cells(Watcher):
    """A watcher that knows how every cell fares."""

    def start(self, cells: Sequence[Cell], stages: Sequence[Stage]) -> None:
        self.cells = list(cells)
        self.states = {
            cell.name: State(stage, note=scores_of(cell) if stage == "finished" else "")
            for cell, stage in zip(cells, stages, strict=True)
        }

    def began(self, cell: Cell) -> None:
        self.states[cell.name] = State("running", begun=time.monotonic())

    def progress(self, cell: Cell, progress: Progress) -> None:
        self.states[cell.name] = replace(self.states[cell.name], stage="running", progress=progress)

    def ended(self, cell: Cell, reason: str) -> None:
        before = self.states[cell.name]
        took = None if before.begun is None else time.monotonic() - before.begun
        stage, note = ("failed", reason) if reason else ("finished", scores_of(cell))
        self.states[cell.name] = replace(before, stage=stage, note=note, took=took)

    def paused(self, cell: Cell) -> None:
        before = self.states[cell.name]
        took = None if before.begun is None else time.monotonic() - before.begun
        self.states[cell.name] = replace(before, stage="paused", took=took)

    def count(self) -> str:
        """How many cells are in which state, in words."""
        stages = [state.stage for state in self.states.values()]
        told = [
            f"{stages.count(stage)} {stage}"
            for stage in ("finished", "running", "paused", "failed")
            if stage in stages
        ]
        return f"{len(stages)} cells: {', '.join(told) or 'none begun'}"


class PlainLines(Cells):
    """A line when a cell begins, and one when it ends."""

    def start(self, cells: Sequence[Cell], stages: Sequence[Stage]) -> None:
        super().start(cells, stages)
        print(self.count(), flush=True)

    def began(self, cell: Cell) -> None:
        super().began(cell)
        print(f"{cell.name}  begins", flush=True)

    def ended(self, cell: Cell, reason: str) -> None:
        super().ended(cell, reason)
        state = self.states[cell.name]
        took = "" if state.took is None else f"  {state.took:.0f} s"
        print(f"{cell.name}  {state.stage}  {state.note}{took}", flush=True)

    def paused(self, cell: Cell) -> None:
        super().paused(cell)
        done = self.states[cell.name].progress
        print(f"{cell.name}  pauses{f' after {done.rounds} of {done.of} rounds' if done else ''}", flush=True)


class LiveTable(Cells):
    """A table that changes in its place."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen

    def start(self, cells: Sequence[Cell], stages: Sequence[Stage]) -> None:
        super().start(cells, stages)
        self._live = Live(
            get_renderable=self.table, console=self._screen, refresh_per_second=4, transient=True
        )
        self._live.start()

    def finish(self) -> None:
        self._live.stop()

    def table(self) -> Table:
        """The cells as they are now; of more than a screen holds, those around the ones that run."""
        table = Table("cell", "", "score", "time", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.caption, table.caption_justify = self.count(), "left"
        for column in table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        room = max(3, self._screen.height - MARGIN)
        running = [i for i, cell in enumerate(self.cells) if self.states[cell.name].stage == "running"]
        first = max(0, min((running[0] if running else 0) - room // 3, len(self.cells) - room))
        for cell in self.cells[first : first + room]:
            state = self.states[cell.name]
            took = time.monotonic() - state.begun if state.begun and state.took is None else state.took
            done = state.progress
            stage = f"round {done.rounds}/{done.of}" if done and state.stage == "running" else state.stage
            score = done.score if done and state.stage == "running" else state.note
            table.add_row(Text(cell.name), stage, Text(score), "" if took is None else f"{took:.0f} s")
        return table
