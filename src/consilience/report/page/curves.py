"""Scores over rounds, bytes and seconds: means and spreads over seeds, of as many rounds as can be drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from consilience.report.runs import BySeed
from consilience.report.summary import Record, score_curve

POINTS, LEAST, MOST = 20_000, 50, 400
"""How many points all curves of a page have together, and how many a curve has at least and at most."""

SCORES, SPREADS = ("test_", "personal_", "own_", "train_loss"), ("_std", "_min", "_max")
"""How the names of what is drawn begin, and how those of what is not drawn end."""

T = TypeVar("T")


def per_curve(count: int) -> int:
    """How many points a curve may have where there are so many of them."""
    return min(max(POINTS // max(count, 1), LEAST), MOST)


def thinned(points: Sequence[T], most: int) -> list[T]:
    """The points, or every so many of them, and the last one.

    >>> thinned([1, 2, 3, 4, 5, 6], 3), thinned([1, 2], 3)
    ([1, 3, 5, 6], [1, 2])
    """
    step = max(1, math.ceil(len(points) / most))
    return list(points) if step == 1 else [*points[:-1:step], points[-1]]


def curves(by_seed: BySeed, most: int) -> tuple[dict[str, dict[str, list[Any]]], bool]:
    """The curves of a method by the names of scores, and whether some rounds were left out.

    Each has the `round`, the `bytes` that a seed had sent and received until then, and the `seconds` that all
    seeds together had taken; then `mean` and `std` over the `seeds` (their number) with a finite value. `std`
    is None for one seed.
    """
    spent = _spent(by_seed)
    found: dict[str, dict[str, list[Any]]] = {}
    left_out = False
    for score in scores_of(by_seed):
        values = [score_curve(run, score) for run in by_seed.values()]
        rounds = sorted({number for one in values for number in one})
        kept = thinned(rounds, most)
        left_out |= len(kept) < len(rounds)
        lines = [_point(number, values) for number in kept]
        mean, std, seeds = (list(column) for column in zip(*lines, strict=True))
        traffic, seconds = zip(*(spent[number] for number in kept), strict=True)
        where: dict[str, list[Any]] = {"round": kept, "bytes": list(traffic), "seconds": list(seconds)}
        found[score] = {**where, "mean": mean, "std": std, "seeds": seeds}
    return found, left_out


def scores_of(by_seed: BySeed) -> list[str]:
    """The names of the scores that are recorded over rounds, without those of their spread over clients."""
    keys = dict.fromkeys(key for run in by_seed.values() for record in run.values() for key in record)
    return [key for key in keys if key.startswith(SCORES) and not key.endswith(SPREADS)]


def _point(number: int, curves_: Sequence[Mapping[int, float]]) -> tuple[float | None, float | None, int]:
    values = [one[number] for one in curves_ if math.isfinite(one.get(number, math.nan))]
    if not values:
        return None, None, 0
    spread = short(statistics.stdev(values)) if len(values) > 1 else None
    return short(statistics.fmean(values)), spread, len(values)


def _spent(by_seed: BySeed) -> dict[int, tuple[float, float]]:
    """The bytes that a seed has sent and received on average, and the seconds that all took, by round."""
    numbers = sorted({number for run in by_seed.values() for number in run})
    lines = [[run[number] for run in by_seed.values() if number in run] for number in numbers]
    traffic = accumulate(
        statistics.fmean(_number(one, "bytes_up") + _number(one, "bytes_down") for one in some)
        for some in lines
    )
    # The seeds of a round train together: each of their records holds the time of all.
    seconds = accumulate(max(_number(one, "seconds") for one in some) for some in lines)
    return {n: (short(a), short(b)) for n, a, b in zip(numbers, traffic, seconds, strict=True)}


def _number(record: Record, key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def short(value: float) -> float:
    """The number with six digits: a page has many of them."""
    return float(f"{value:.6g}")
