"""How a method serves its clients: the mean over them, the worst one, the tenth percentile, the spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from consilience.problems import Metric

Line = Mapping[str, object]
"""A line of clients.jsonl."""

ClientRows = Literal["held out", "test set"]
"""The rows on which clients are scored: those that each keeps back, or those of all."""

KINDS: tuple[tuple[str, ClientRows], ...] = (
    ("personal_", "held out"),
    ("own_", "held out"),
    ("test_", "test set"),
)
"""What says most about how a client is served, first: its own model, its own rows."""


@dataclass(frozen=True)
class ClientSpread:
    """A score over the clients of a method: statistics of each seed, and their means over seeds.

    Clients without such rows, or on whose rows the score is not defined, are left out.
    """

    rows: ClientRows
    clients: float
    """How many clients have the score, the mean over seeds."""
    mean: float
    worst: float
    tenth: float
    """The value than which one client in ten is worse."""
    std: float
    """The standard deviation over clients."""
    who: str = ""
    """The name of the worst client, where clients have names and it is the same one for all seeds."""

    def to_json(self) -> dict[str, object]:
        """The spread as plain values."""
        return asdict(self)


def client_spread(lines: Sequence[Line], metric: Metric) -> ClientSpread | None:
    """The spread of a score over the clients of one method in one setting; None where none has it.

    A client whose model has diverged has no score, and a mean must not hide it: there is none then, either.
    """
    for prefix, rows in KINDS:
        seeds: dict[object, list[float]] = {}
        names: dict[object, list[str]] = {}
        for line in lines:
            value = line.get(f"{prefix}{metric.name}")
            if isinstance(value, int | float):
                seeds.setdefault(line["seed"], []).append(float(value))
                names.setdefault(line["seed"], []).append(str(line.get("name", "")))
            elif _diverged(line, prefix):
                return None
        if seeds:
            found = [_statistics(np.array(values), metric) for values in seeds.values()]
            count, mean, worst, tenth, std = (statistics.fmean(column) for column in zip(*found, strict=True))
            return ClientSpread(rows, count, mean, worst, tenth, std, _worst(seeds, names, metric))
    return None


def _worst(
    seeds: Mapping[object, Sequence[float]], names: Mapping[object, Sequence[str]], metric: Metric
) -> str:
    """The name of the client that is the worst for every seed; empty where there is no such."""
    worst = min if metric.higher_is_better else max
    found = {names[seed][values.index(worst(values))] for seed, values in seeds.items()}
    return found.pop() if len(found) == 1 else ""


def _diverged(line: Line, prefix: str) -> bool:
    """Whether a client has rows for a score but its model's loss there is not finite."""
    rows = line.get("held_out", 0) if prefix != "test_" else 1
    return bool(rows) and f"{prefix}loss" in line and line[f"{prefix}loss"] is None


def _statistics(values: np.ndarray[tuple[int], np.dtype[np.float64]], metric: Metric) -> tuple[float, ...]:
    worst, tenth = (
        (values.min(), np.quantile(values, 0.1))
        if metric.higher_is_better
        else (values.max(), np.quantile(values, 0.9))
    )
    assert math.isfinite(worst)
    return len(values), float(values.mean()), float(worst), float(tenth), float(values.std())
