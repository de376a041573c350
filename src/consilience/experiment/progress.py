"""How far a run is: in words, and as bars in a notebook."""

from __future__ import annotations

import html
import sys
import time
from statistics import fmean
from typing import Any

from consilience import sweeping
from consilience.errors import printable, some_of
from consilience.experiment.planning import Arm
from consilience.experiment.result import Listener
from consilience.report.units import human_bytes

PAUSE = 0.2
"""How many seconds lie between two looks of a notebook's bars: rounds may take a thousandth of that."""


class Clock(Listener):
    """A listener that knows how far the run is, and says it in a line."""

    def start(self, arms: list[Arm]) -> None:
        self.arms = arms
        self.metric = arms[0].scene.task_problem.metric  # all arms have one
        self.seen = 0
        self.begin = time.monotonic()
        self.bytes: dict[str, float] = {}
        """What a run of each arm has sent; a mean over its seeds and variants, as in the table."""

    def resumed(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self._count(arm, lines)

    def _count(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        now = fmean(line["bytes_up"] + line["bytes_down"] for line in lines)
        self.bytes[arm.name] = self.bytes.get(arm.name, 0) + now

    def status(self, arm: Arm, lines: list[dict[str, Any]]) -> str:
        """One line about a round."""
        self.seen += 1
        self._count(arm, lines)
        score = f"test_{self.metric.name}"
        best = self.best(lines, score)
        scores = [line[score] for line in best if line.get(score) is not None]
        losses = [line["train_loss"] for line in best if line["train_loss"] is not None]
        swept = [line.get("swept", {}) for line in lines]
        unlike = {
            key: value
            for key, value in best[0].get("swept", {}).items()
            if {value} != {one[key] for one in swept}
        }
        seconds = max(lines[0]["seconds"], 1e-9)
        samples = sum(line["samples"] for line in lines)  # none where a method takes no steps
        facts = [
            arm.name,
            f"round {lines[0]['round']}/{arm.config.rounds}",
            f"{self.metric.name} {self.metric.shown_with_unit(fmean(scores))}" if scores else "",
            f"(best: {sweeping.label_of(unlike)})" if scores and unlike else "",
            f"loss {_shown(fmean(losses))}" if losses else "",
            f"{samples / seconds:,.0f} samples/s" if samples else "",
            f"{human_bytes(self.bytes[arm.name])} sent",
            f"{self.left(arm, lines[0]['round']):.0f} s left",
        ]
        several = len(arm.variants) > 1
        who = [
            f"{line['method']}, seed {line['seed']}" if several else f"seed {line['seed']}" for line in lines
        ]
        told = list(zip(who, lines, strict=True))
        dropped = [f"{one}: {name}" for one, line in told for name in line["dropped"]]
        stopped = [f"{one}: {line['stopped']}" for one, line in told if "stopped" in line]
        for label, notes in (("dropped", dropped), ("stopped", stopped)):
            facts.append(f"{label} {some_of(notes)}" if notes else "")
        return printable("  ".join(filter(None, facts)))  # names are those of the data

    def best(self, lines: list[dict[str, Any]], score: str) -> list[dict[str, Any]]:
        """The lines of the variant that is best in a round: a mean over unlike variants would say nothing."""
        variants: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            variants.setdefault(line.get("method", ""), []).append(line)
        sound = {
            fmean(line[score] for line in found): found
            for found in variants.values()
            if all(line.get(score) is not None for line in found)
        }
        return sound[self.metric.best(sound)] if sound else next(iter(variants.values()))

    def left(self, arm: Arm, number: int) -> float:
        """Seconds that the rest will take after a round if rounds go on as they went."""
        later = self.arms[self.arms.index(arm) + 1 :]
        rounds = arm.config.rounds - number + sum(one.config.rounds for one in later)
        return max(0.0, time.monotonic() - self.begin) / self.seen * rounds


def _shown(loss: float) -> str:
    """A loss with four decimals, unless it is beyond all measure."""
    return f"{loss:.4f}" if abs(loss) < 1e6 else f"{loss:.3g}"


def in_notebook() -> bool:
    """Whether this is a cell of a notebook, and not a script or a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay(Clock):
    """A bar for every method of every setting, in one output that changes in its place."""

    def start(self, arms: list[Arm]) -> None:
        from IPython.display import display

        super().start(arms)
        self._told = {arm.name: (0, "") for arm in arms}
        self._shown = time.monotonic()
        self._handle: Any = display(_Bars(self._page()), display_id=True)

    def resumed(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        super().resumed(arm, lines)
        self._tell(arm, lines[0]["round"], "")

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        status = self.status(arm, lines).removeprefix(arm.name).strip()
        self._tell(arm, lines[0]["round"], status)

    def setting_up(self, arm: Arm) -> None:
        self._tell(arm, 0, "preparing the first round")

    def evaluating_clients(self, arm: Arm) -> None:
        self._tell(arm, arm.config.rounds, self._told[arm.name][1])

    def finish(self) -> None:
        self._handle.update(_Bars(self._page()))

    def _tell(self, arm: Arm, done: int, status: str) -> None:
        self._told[arm.name] = (done, status)
        if time.monotonic() - self._shown > PAUSE:
            self._shown = time.monotonic()
            self._handle.update(_Bars(self._page()))

    def _page(self) -> str:
        """The bars as HTML; labels are the user's, so that nothing in them is markup."""
        rows = [
            f"<tr><td style='text-align:left'>{html.escape(arm.name)}</td>"
            f"<td><progress value='{done}' max='{arm.config.rounds}'></progress></td>"
            f"<td style='text-align:left'>{html.escape(status)}</td></tr>"
            for arm in self.arms
            for done, status in (self._told[arm.name],)
        ]
        return f"<table>{''.join(rows)}</table>"


class _Bars:
    """What a notebook shows; a program that shows no HTML gets nothing."""

    def __init__(self, page: str) -> None:
        self.page = page

    def __repr__(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        return self.page
