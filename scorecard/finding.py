"""What an attack found: how many trials passed, what was measured beside that, and why others failed."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHOWN = 5
"""How many faults are kept in words; all are counted."""

MANY = 20
"""Trials of which half must hit something; of fewer all may miss, where a machine is busy."""

Figure = float | int | str


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    trials: int
    passed: int
    figures: dict[str, Figure] = field(default_factory=dict)
    """Whatever else was measured, by a name that says the unit."""
    faults: tuple[str, ...] = ()
    """Why the first trials that failed did so."""

    @property
    def kept(self) -> bool:
        """Whether every trial passed."""
        return self.passed == self.trials > 0

    def written(self) -> dict[str, Any]:
        """The finding as plain values."""
        return {
            "trials": self.trials,
            "passed": self.passed,
            "figures": self.figures,
            "faults": list(self.faults),
        }


class Tally:
    """Counts trials as they come."""

    def __init__(self) -> None:
        self.trials = self.passed = 0
        self.figures: dict[str, Figure] = {}
        self._faults: list[str] = []

    def note(self, what: str, *faults: str | None) -> None:
        """Count a trial, which passed where there is no fault."""
        found = [fault for fault in faults if fault]
        self.trials += 1
        self.passed += not found
        if found and len(self._faults) < SHOWN:
            self._faults.append(f"{what}: {'; '.join(found)}"[:400])

    @contextlib.contextmanager
    def trial(self, what: str) -> Iterator[None]:
        """Count what happens within as a trial; an exception is its fault, and the next ones go on."""
        try:
            yield
        except Exception as error:
            self.note(what, reason(error))
        else:
            self.note(what)

    def most(self, name: str, value: float) -> None:
        """Keep the largest of some values."""
        self.figures[name] = round(max(float(self.figures.get(name, value)), value), 4)

    def count(self, name: str, more: int = 1) -> None:
        """Add to a count."""
        self.figures[name] = int(self.figures.get(name, 0)) + more

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Keep the longest of some times."""
        begun = time.perf_counter()
        yield
        self.most(name, time.perf_counter() - begun)

    def need(self, name: str) -> None:
        """Count as a fault that of many attacks fewer than half hit anything: they would say little."""
        hits = int(self.figures.get(name, 0))
        if self.trials >= MANY and hits < self.trials / 2:
            self.note("the attack itself", f"{name}: {hits} in {self.trials} trials")

    def finding(self) -> Finding:
        """What there is so far."""
        return Finding(self.trials, self.passed, self.figures, tuple(self._faults))


class Broken(Exception):  # noqa: N818 - a promise is what breaks, and it says how
    """A promise was not kept, in words."""


def demand(condition: object, fault: str) -> None:
    """Fail a trial, with the reason, where a condition does not hold."""
    if not condition:
        raise Broken(fault)


def reason(error: Exception) -> str:
    """Why a trial failed, and in which line, unless words say it."""
    if isinstance(error, Broken):
        return str(error)
    line = next(
        one
        for one in reversed(traceback.extract_tb(error.__traceback__))
        if one.name not in {"until", "demand"}
    )
    text = f"{type(error).__name__}: {error}"[:250]
    return f"{text} ({Path(line.filename).name}, line {line.lineno}: {line.line})"
