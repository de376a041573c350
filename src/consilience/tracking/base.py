"""The contract of a tracker: a service that keeps curves and tables of runs, of this library and others."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from consilience.plain import write_yaml

Place = TypeVar("Place")
"""What a service has for one curve: a run of its own, or a file."""


class Curve(NamedTuple):
    """One method of one setting with one seed, whose metrics are drawn over rounds."""

    setting: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.setting} {self.method} seed {self.seed}"


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told about a run."""

    name: str
    key: str
    """A name that no other run has, the same after a resume."""
    path: Path
    """The run's folder, or where it would be."""
    config: Mapping[str, Any]
    """The configuration as plain values."""

    @property
    def config_text(self) -> str:
        """The configuration as YAML."""
        return write_yaml(self.config)

    def id_of(self, name: str) -> str:
        """A short id for something of this run, the same after a resume."""
        return hashlib.sha256(f"{self.key} {name}".encode()).hexdigest()[:16]


class Tracker(ABC):
    """A service that is told how a run goes: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]
    library: ClassVar[str]
    """The package that it needs, which is also the name of this package's extra."""

    @abstractmethod
    def session(self, run: TrackedRun) -> Session[Any]:
        """The place where a run is kept from now on.

        Raises:
            ImportError: The service's own package is not installed.
        """


class Session(ABC, Generic[Place]):
    """A run as one tracker keeps it. Curves are opened by their first round and ended by others' rounds."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self._places: dict[Curve, Place] = {}

    def log(self, number: int, scores: Mapping[Curve, Mapping[str, float]]) -> None:
        """Keep the metrics of a round, of all curves that are trained together."""
        self._end([curve for curve in self._places if curve not in scores])
        for curve, found in scores.items():
            if curve not in self._places:
                self._places[curve] = self.begin(curve, number)
            self.write(self._places[curve], number, found)

    def close(self) -> None:
        """End what is still open."""
        self._end([*self._places])

    def _end(self, curves: Sequence[Curve]) -> None:
        for curve in curves:
            self.end(self._places.pop(curve))

    @abstractmethod
    def begin(self, curve: Curve, number: int) -> Place:
        """The place of a curve, whose first round from now on has this number."""

    @abstractmethod
    def write(self, place: Place, number: int, scores: Mapping[str, float]) -> None:
        """Keep the metrics of a round."""

    @abstractmethod
    def end(self, place: Place) -> None:
        """The rounds of a curve are complete, or interrupted."""

    @abstractmethod
    def conclude(self, table: Sequence[Mapping[str, Any]]) -> None:
        """Keep the final table, a row for every method of every setting."""


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a round's line: all that are numbers."""
    known = {
        key: value
        for key, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {key: float(value) for key, value in known.items() if key not in ("seed", "round")}


def flat(values: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The plain values within nested ones, each with its dotted path.

    >>> dict(flat({"local": {"epochs": 1}, "method": [{"name": "hwa"}], "seeds": [0, 1]}))
    {'local.epochs': 1, 'method.0.name': 'hwa', 'seeds': '[0, 1]'}
    """
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, list) and any(isinstance(value, Mapping) for value in values):
        yield from flat(dict(enumerate(values)), path)
    else:
        yield path, values if isinstance(values, int | float | str | bool | None) else str(values)


def columns(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all columns of a table, whose rows need not have all of them."""
    return list(dict.fromkeys(name for row in table for name in row))


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """A table as Markdown.

    >>> print(markdown([{"method": "hwa", "final": 0.5}]))
    | method | final |
    |---|---|
    | hwa | 0.5 |
    """
    names = columns(table)
    rows = [names, *(["" if row.get(name) is None else str(row[name]) for name in names] for row in table)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(names), *lines[1:]])
