"""The figures of a table: what raw results say where a row and a column meet, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean, stdev
from typing import Any, Literal

from consilience.reproduce.raw import Curves, Label, Raw, label_of
from consilience.reproduce.recipes import PATTERNS, Table

Kind = Literal["score", "rounds", "megabytes"]
"""What a figure is: the score after a round in per cent, the rounds to a target, or what was sent by then."""

FEW = 5
"""The most seeds whose rounds are told one by one."""
NOTHING = "–"


@dataclass(frozen=True)
class Figure:
    """One figure of a table, for every seed."""

    values: Mapping[int, float | None]
    """A percentage, or the rounds to a target, by seed; None where it diverged, or was not reached."""
    rounds: int
    """How many rounds there were."""
    kind: Kind
    complete: bool
    """Whether there were as many rounds as planned."""
    variant: str = ""
    """The numbers that were the best of those searched, in words."""
    variants: int = 1
    """How many were searched."""

    @property
    def in_rounds(self) -> bool:
        """Whether it is rounds to a target, of which fewer are better."""
        return self.kind == "rounds"

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None where a seed has no value."""
        found = [value for value in self.values.values() if value is not None]
        return fmean(found) if len(found) == len(self.values) else None

    def score(self, seed: int) -> float:
        """A seed's value such that more is better, and comparable where there is none."""
        value = self.values[seed]
        if value is None:
            return -math.inf
        return value if self.kind == "score" else -value

    def told(self) -> str:
        """The figure in words."""
        if self.in_rounds:
            return self._rounds_told()
        sound = [value for value in self.values.values() if value is not None]
        if not sound:
            return "diverged"
        text = f"{fmean(sound):.2f}"
        if self.kind == "score" and len(sound) > 1:
            text += f" ± {stdev(sound):.2f}"
        if len(sound) < len(self.values):
            text += f" ({len(self.values) - len(sound)} diverged)"
        return text if self.complete else f"{text} after {self.rounds} rounds"

    def _rounds_told(self) -> str:
        reached = [value for value in self.values.values() if value is not None]
        if not reached:
            return f"not in {self.rounds}"
        if len(self.values) <= FEW:
            words = [f"> {self.rounds}" if v is None else f"{v:.0f}" for v in self.values.values()]
            return ", ".join(words)
        spread = f"{fmean(reached):.1f} ± {stdev(reached):.1f}" if len(reached) > 1 else f"{reached[0]:.0f}"
        missed = len(self.values) - len(reached)
        return f"{spread} ({missed} not in {self.rounds})" if missed else spread


def figure_of(table: Table, row: str, column: str, cells: Mapping[str, Raw]) -> Figure | None:
    """The figure where a row and a column meet; None where it is not measured.

    Of several variants that a row names (a grid that was searched) it is that of the best one: the one that
    reaches the highest of the table's targets first, or, where there are none, the one with the best mean
    score at the end. It is the best on the test set, as in the papers.
    """
    wanted = table.entry(row, column)
    raw = cells.get(wanted["cell"])
    if raw is None:
        return None
    scores = raw.curves_of(wanted["score"]) if "score" in wanted else raw.curves
    found = {label: curves for label, curves in scores.items() if _is_wanted(label, wanted)}
    if not found:
        return None
    targets = sorted(
        {one["target"] for one in (*table.rows.values(), *table.columns.values()) if "target" in one}
    )
    best = min(found, key=lambda label: _rank(found[label], targets))
    curves = found[best]
    at = wanted.get("round")
    if at is not None and any(at not in curve for curve in curves.values()):
        return None
    last = max(max(curve) for curve in curves.values())
    kind: Kind = "rounds" if "target" in wanted else "megabytes" if "megabytes" in wanted else "score"
    if kind == "rounds":
        values = {seed: _first(curve, wanted["target"]) for seed, curve in curves.items()}
    elif kind == "megabytes":
        values = _megabytes(raw.lines, best)
    else:
        values = {seed: _percent(curve[at or max(curve)]) for seed, curve in curves.items()}
    return Figure(
        dict(sorted(values.items())),
        last,
        kind,
        at is not None or raw.stopped or last >= raw.planned,
        best[2] if len(found) > 1 else "",
        len(found),
    )


def why_missing(table: Table, row: str, column: str, cells: Mapping[str, Raw]) -> str:
    """Why there is no figure where a row and a column meet, in words."""
    wanted = table.entry(row, column)
    raw, at, score = cells.get(wanted["cell"]), wanted.get("round"), wanted.get("score")
    if raw is None or not raw.finished:
        return "not measured yet"
    if score is not None and not raw.curves_of(score):
        return f"no {score}"
    return f"no round {at}" if at is not None and at > raw.planned else "not measured yet"


def _is_wanted(label: Label, wanted: Mapping[str, Any]) -> bool:
    """Whether a variant's setting and method match the patterns of an entry."""
    named = dict(zip(PATTERNS, label, strict=False))
    return all(fnmatchcase(named[key], pattern) for key in PATTERNS for pattern in wanted[key])


def _megabytes(lines: Iterable[Mapping[str, Any]], label: Label) -> dict[int, float | None]:
    """What a variant has sent and received in all rounds, by seed."""
    found: dict[int, float | None] = {}
    for line in lines:
        if label_of(line) == label:
            sent = (line["bytes_up"] + line["bytes_down"]) / 1e6
            found[line["seed"]] = (found.get(line["seed"]) or 0.0) + sent
    return found


def _rank(curves: Curves, targets: Sequence[float]) -> tuple[float, ...]:
    """What orders variants, the best first."""
    reached = [
        fmean(math.inf if (r := _first(curve, target)) is None else r for curve in curves.values())
        for target in reversed(targets)
    ]
    last = [curve[max(curve)] for curve in curves.values()]
    return (*reached, -fmean(-math.inf if value is None else value for value in last))


def _first(curve: Mapping[int, float | None], target: float) -> float | None:
    """The first round in which a score is at least the target; None where it never is."""
    return next((float(r) for r in sorted(curve) if (v := curve[r]) is not None and v >= target), None)


def _percent(score: float | None) -> float | None:
    return None if score is None else 100 * score
