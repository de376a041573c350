"""What a person sees: progress while a run goes on, and tables at its end."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from consilience.cli.screen import console
from consilience.experiment import Arm, Listener, Result
from consilience.experiment.folder import plots_of
from consilience.report.table import clients_table, comparison_table
from consilience.report.units import human_bytes


def display() -> Listener:
    """A live display on a terminal, else one plain line a round."""
    screen = console()
    return LiveDisplay(screen) if screen.is_terminal else PlainDisplay()


class _Clock(Listener):
    """Knows how far the run is."""

    def start(self, arms: list[Arm]) -> None:
        self.arms = arms
        self.metric = arms[0].scene.task_problem.metric  # all arms have one
        self.seen = 0
        self.begin = time.monotonic()
        self.bytes: dict[str, float] = {}
        """What a run of each arm has sent; a mean over its seeds and variants, as in the table."""

    def status(self, arm: Arm, lines: list[dict[str, Any]]) -> str:
        """One line about a round."""
        self.seen += 1
        now = fmean(line["bytes_up"] + line["bytes_down"] for line in lines)
        self.bytes[arm.name] = self.bytes.get(arm.name, 0) + now
        score = f"test_{self.metric.name}"
        scores = [line[score] for line in lines if line.get(score) is not None]
        losses = [line["train_loss"] for line in lines if line["train_loss"] is not None]
        seconds = max(lines[0]["seconds"], 1e-9)
        facts = [
            arm.name,
            f"round {lines[0]['round']}/{arm.config.rounds}",
            f"{self.metric.name} {self.metric.shown_with_unit(fmean(scores))}" if scores else "",
            f"loss {fmean(losses):.4f}" if losses else "",
            f"{sum(line['samples'] for line in lines) / seconds:,.0f} samples/s",
            f"{human_bytes(self.bytes[arm.name])} sent",
            f"{self.left(arm, lines[0]['round']):.0f} s left",
        ]
        dropped = [f"seed {line['seed']}: {name}" for line in lines for name in line["dropped"]]
        stopped = [
            f"{line['method']}, seed {line['seed']}: {line['stopped']}" for line in lines if "stopped" in line
        ]
        for label, notes in (("dropped", dropped), ("stopped", stopped)):
            facts.append(f"{label} {', '.join(notes)}" if notes else "")
        return "  ".join(filter(None, facts))

    def left(self, arm: Arm, number: int) -> float:
        """Seconds that the rest will take after a round if rounds go on as they went."""
        later = self.arms[self.arms.index(arm) + 1 :]
        rounds = arm.config.rounds - number + sum(one.config.rounds for one in later)
        return (time.monotonic() - self.begin) / self.seen * rounds


class PlainDisplay(_Clock):
    """One line a round."""

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        print(self.status(arm, lines), flush=True)

    def setting_up(self, arm: Arm) -> None:
        print(f"{arm.name}  preparing the first round, which may take longer than a round", flush=True)

    def evaluating_clients(self, arm: Arm) -> None:
        print(f"{arm.name}  evaluating every client on its own data", flush=True)


class LiveDisplay(_Clock):
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

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        bar = self._bars[arm.name]
        self._progress.start_task(bar)
        status = self.status(arm, lines).removeprefix(arm.name).strip()
        self._progress.update(bar, completed=lines[0]["round"], status=status)

    def setting_up(self, arm: Arm) -> None:
        self._progress.update(self._bars[arm.name], status="preparing the first round")

    def finish(self) -> None:
        self._progress.stop()


def show_result(result: Result) -> None:
    """Print the comparison, the configuration's note on it, and where the files are."""
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
    print(f"digest: {result.digest}")
