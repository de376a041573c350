"""Whether methods differ by more than their seeds do.

Two methods with the same seeds met the same splits, initial weights and draws, so that a two-sided t-test is
paired over these seeds; where fewer than three are shared it is Welch's, between independent samples. One
test among many finds something by chance: p-values of all comparisons with one method are also given as Holm
corrects them. A one-way analysis of variance over all methods is what papers print beside a table (HWA's
does); it takes seeds for independent samples. Of fewer than three seeds nothing is said, nor of a method that
has diverged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Finals = Mapping[int, float]
"""The final score of a method by seed; NaN where it diverged."""

LEAST = 3
"""The fewest seeds from which anything is concluded."""


@dataclass(frozen=True)
class Comparison:
    """A method beside another one."""

    difference: float | None
    """The mean score of the one less that of the other, over the seeds that count; None without any."""
    seeds: int
    """How many seeds each has at least, shared ones where the test is paired."""
    test: Literal["paired t-test", "Welch's t-test", ""]
    p: float | None = None
    holm: float | None = None
    """The p-value, corrected for all comparisons with the same method."""
    why: str = ""
    """Why there is no p-value."""


@dataclass(frozen=True)
class Variance:
    """A one-way analysis of variance over methods."""

    methods: int
    seeds: int
    """The fewest seeds that one of them has."""
    statistic: float | None
    p: float | None
    why: str = ""


def compared(one: Finals, other: Finals) -> Comparison:
    """The test of one method against another."""
    from scipy import stats  # which takes half a second

    if not all(map(math.isfinite, [*one.values(), *other.values()])):
        return Comparison(None, 0, "", why="a seed has diverged or has no score")
    shared = sorted(one.keys() & other.keys())
    if len(shared) >= LEAST:
        left, right = [one[seed] for seed in shared], [other[seed] for seed in shared]
        apart = statistics.fmean(a - b for a, b in zip(left, right, strict=True))
        if _alike([a - b for a, b in zip(left, right, strict=True)], max(map(abs, [*left, *right]))):
            return Comparison(apart, len(shared), "", why="they differ by the same in every seed")
        return Comparison(apart, len(shared), "paired t-test", _finite(stats.ttest_rel(left, right).pvalue))
    least = min(len(one), len(other))
    difference = statistics.fmean(one.values()) - statistics.fmean(other.values()) if least else None
    if least < LEAST:
        return Comparison(difference, least, "", why=f"fewer than {LEAST} seeds")
    if _alike(one.values()) and _alike(other.values()):
        return Comparison(difference, least, "", why="every seed gave the same")
    found = stats.ttest_ind(list(one.values()), list(other.values()), equal_var=False)
    return Comparison(difference, least, "Welch's t-test", _finite(found.pvalue))


def against(reference: int, methods: Sequence[Finals]) -> list[Comparison | None]:
    """Every method beside one of them, for which it is None, with p-values as Holm corrects them."""
    found = [None if i == reference else compared(one, methods[reference]) for i, one in enumerate(methods)]
    ranked = sorted(
        (one.p, place) for place, one in enumerate(found) if one is not None and one.p is not None
    )
    largest, corrected = 0.0, list(found)
    for rank, (p, place) in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - rank) * p))
        one = found[place]
        assert one is not None
        corrected[place] = replace(one, holm=largest)
    return corrected


def variance(methods: Sequence[Finals]) -> Variance | None:
    """The analysis of variance over methods; None where there is but one."""
    from scipy import stats

    if len(methods) < 2:
        return None
    seeds = min(map(len, methods))
    if not all(math.isfinite(value) for one in methods for value in one.values()):
        return Variance(len(methods), seeds, None, None, "a seed has diverged or has no score")
    if seeds < LEAST:
        return Variance(len(methods), seeds, None, None, f"fewer than {LEAST} seeds")
    if all(_alike(one.values()) for one in methods):
        return Variance(len(methods), seeds, None, None, "every seed gave the same")
    found = stats.f_oneway(*(list(one.values()) for one in methods))
    return Variance(len(methods), seeds, _finite(found.statistic), _finite(found.pvalue))


def shown_p(p: float | None) -> str:
    """A p-value as papers print it.

    >>> [shown_p(p) for p in (0.5, 0.04321, 0.00009, None)]
    ['0.500', '0.043', '< 0.001', '–']
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _alike(values: Iterable[float], scale: float | None = None) -> bool:
    """Whether values differ by no more than rounding, of numbers of some size (by default their own)."""
    found = list(values)
    largest = max(map(abs, found)) if scale is None else scale
    return max(found) - min(found) <= 1e-12 * largest


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
