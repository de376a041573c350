"""What a person sees: progress while a run goes on, and tables at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from consilience.cli.screen import console
from consilience.experiment import Arm, Listener, Result
from consilience.experiment.folder import plots_of
from consilience.experiment.progress import Clock
from consilience.report.table import clients_table, comparison_table


def display() -> Listener:
    """A live display on a terminal, else one plain line a round."""
    screen = console()
    return LiveDisplay(screen) if screen.is_terminal else PlainDisplay()


class PlainDisplay(Clock):
    """One line a round."""

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        print(self.status(arm, lines), flush=True)

    def setting_up(self, arm: Arm) -> None:
        print(f"{arm.name}  preparing the first round, which may take longer than a round", flush=True)

    def evaluating_clients(self, arm: Arm) -> None:
        print(f"{arm.name}  evaluating every client on its own data", flush=True)


class LiveDisplay(Clock):
    """A bar for every method of every setting."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._bars: dict[str, TaskID] = {}

    def start(self, arms: list[Arm]) -> None:
        super().start(arms)
        longest = max(len(arm.name) for arm in arms)
        self._progress = Progress(
            # On a narrow screen the end of the status goes, never the name.
            TextColumn("{task.fields[label]}", markup=False, table_column=Column(min_width=longest)),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
            console=self._screen,
        )
        for arm in arms:
            self._bars[arm.name] = self._progress.add_task(
                "", label=arm.name, status="", total=arm.config.rounds, start=False
            )
        self._progress.start()

    def resumed(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        super().resumed(arm, lines)
        self._progress.update(self._bars[arm.name], completed=lines[0]["round"])

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        bar = self._bars[arm.name]
        self._progress.start_task(bar)
        status = self.status(arm, lines).removeprefix(arm.name).strip()
        self._progress.update(bar, completed=lines[0]["round"], status=status)

    def setting_up(self, arm: Arm) -> None:
        self._progress.update(self._bars[arm.name], status="preparing the first round")

    def finish(self) -> None:
        self._progress.stop()


def show_result(result: Result, drawn: Sequence[Path] = ()) -> None:
    """Print the comparison, the configuration's note on it, and where the files are.

    Args:
        result: What came out.
        drawn: Plots beside those that every run has.
    """
    screen = console()
    screen.print(comparison_table(result.summaries, result.targets, result.metric, result.goals))
    spreads = clients_table(result.summaries, result.metric)
    if spreads is not None:
        screen.print(spreads)
    elif result.clients:
        screen.print(f"clients' own {result.metric.name}: –  (nobody holds rows out: set partition.holdout)")
    if result.note:
        screen.print(Text(result.note))  # not markup: brackets are the user's
    if result.path is not None:
        print(f"results: {result.path}")
        for plot in filter(Path.exists, (result.path / name for name in plots_of(result.metric))):
            print(f"plot: {plot}")
        for plot in drawn:
            print(f"plot: {plot}")
    print(f"digest: {result.digest}")
