"""Whether what a paper claims is seen in what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from scipy import stats

from consilience.reproduce.figures import Figure, figure_of
from consilience.reproduce.raw import Raw
from consilience.reproduce.recipes import Claim, Recipe, Table

SIGNIFICANT = 0.05
"""A probability below which a difference is no accident."""
ENOUGH = 3
"""The seeds without which nothing is said."""
MANY = 6
"""The most comparisons that are told one by one."""

Verdict = Literal["holds", "holds in part", "does not hold here", "not known yet"]


@dataclass(frozen=True)
class Comparison:
    """Two rows of a table in one column, seed by seed."""

    where: str
    gain: float | None
    """How much better the first is in the mean, in points or rounds; None where one has no mean."""
    better: int
    """In how many seeds it is better."""
    seeds: int
    p: float | None
    """The probability of a paired t-test; None where there is no spread, or a value is missing."""
    in_rounds: bool

    @property
    def ahead(self) -> bool:
        """Whether the first is ahead: in every seed, or in the mean by more than an accident."""
        significant = self.p is not None and self.p < SIGNIFICANT and (self.gain or 0) > 0
        return self.better == self.seeds or significant

    def told(self) -> str:
        """The comparison in words."""
        gain = ""
        if self.gain is not None and self.in_rounds:
            gain = f"{abs(self.gain):.1f} rounds {'fewer' if self.gain >= 0 else 'more'}, "
        elif self.gain is not None:
            gain = f"{self.gain:+.2f} points, "
        p = "" if self.p is None else f", p = {probability(self.p)}"
        return f"{self.where}: {gain}better in {self.better} of {self.seeds} seeds{p}"


@dataclass(frozen=True)
class Judgement:
    """A claim, and what became of it."""

    claim: Claim
    verdict: Verdict
    reasons: tuple[str, ...]
    held: tuple[bool, ...]
    """Whether each of the reasons speaks for it."""
    comparisons: int
    """How many comparisons the claim asks for; reasons are those that could be made."""

    @property
    def told(self) -> str:
        """The verdict, and on how much of the claim it rests where that is not all."""
        made = len(self.reasons)
        return (
            f"{self.verdict} ({made} of {self.comparisons} comparisons)"
            if 0 < made < self.comparisons
            else self.verdict
        )

    def why(self) -> str:
        """The reasons in words: all, or of many only those against it."""
        if len(self.reasons) <= MANY:
            return "; ".join(self.reasons)
        against = [reason for reason, held in zip(self.reasons, self.held, strict=True) if not held]
        counted = f"so in {sum(self.held)} of {len(self.held)} comparisons"
        return f"{counted}; not so: {'; '.join(against)}" if against else counted


def judged(claim: Claim, recipe: Recipe, cells: Mapping[str, Raw]) -> Judgement:
    """What became of a claim: it holds where all comparisons say so, in part where some do.

    A row is ahead of another where it is better in every seed (of three at least), or in the mean with a
    probability below 0.05 in a paired t-test. Rows are alike where their means differ by no more than the
    claim says. Comparisons cannot be made that are not measured with three seeds and to the last round, or in
    which nobody reached the target.
    """
    tables = [table for table in recipe.tables if table.title in claim.tables]
    places = [(table, column) for table in tables for column in claim.columns if column in table.columns]
    if (limit := claim.alike) is not None:
        return _judgement(claim, [_alike(_where(claim, *place), limit, *place, cells) for place in places])
    found = [
        _compared(row, other, column, table, cells, claim)
        for table, column in places
        for row in claim.ahead
        for other in claim.of
    ]
    return _judgement(claim, [None if one is None else (one.told(), one.ahead) for one in found])


def _judgement(claim: Claim, found: Sequence[tuple[str, bool] | None]) -> Judgement:
    """What follows from comparisons: reasons and whether they speak for a claim; None: could not be made."""
    made = [one for one in found if one is not None]
    held = tuple(one for _, one in made)
    return Judgement(claim, _verdict(held), tuple(reason for reason, _ in made), held, len(found))


def _verdict(held: Sequence[bool]) -> Verdict:
    if not held:
        return "not known yet"
    return "holds" if all(held) else "holds in part" if any(held) else "does not hold here"


def _compared(
    row: str, other: str, column: str, table: Table, cells: Mapping[str, Raw], claim: Claim
) -> Comparison | None:
    first, second = (figure_of(table, one, column, cells) for one in (row, other))
    if first is None or second is None:
        return None
    seeds = sorted(first.values.keys() & second.values.keys())
    if len(seeds) < ENOUGH or not _comparable(first, second, seeds):
        return None
    where = _where(claim, table, column)
    where += f", {row}" if len(claim.ahead) > 1 else ""
    where += f", against {other}" if len(claim.of) > 1 else ""
    better = sum(first.score(seed) > second.score(seed) for seed in seeds)
    gains = [first.score(seed) - second.score(seed) for seed in seeds]
    if not all(map(math.isfinite, gains)):
        return Comparison(where, None, better, len(seeds), None, first.in_rounds)
    p = float(stats.ttest_1samp(gains, 0).pvalue) if len(set(gains)) > 1 else None
    return Comparison(where, fmean(gains), better, len(seeds), p, first.in_rounds)


def _comparable(first: Figure, second: Figure, seeds: list[int]) -> bool:
    """Whether two rows ran as long as planned; of rounds to a target it is enough to know who was first.

    That is known where at least one has reached it, and the other ran as long, in every seed.
    """
    if not first.in_rounds:
        return first.complete and second.complete
    for seed in seeds:
        values = [(one.values[seed], one.rounds) for one in (first, second)]
        reached = [value for value, _ in values if value is not None]
        if not reached or any(value is None and rounds < min(reached) for value, rounds in values):
            return False
    return True


def _where(claim: Claim, table: Table, column: str) -> str:
    """The column that is compared, with its table where a claim is about several."""
    return f"{table.title}, {column}" if len(claim.tables) > 1 else column


def _alike(
    where: str, limit: float, table: Table, column: str, cells: Mapping[str, Raw]
) -> tuple[str, bool] | None:
    """How far apart the rows of a column are in the mean, and whether that is within a limit."""
    figures = [figure_of(table, row, column, cells) for row in table.rows]
    measured = [one for one in figures if one is not None and one.complete and len(one.values) >= ENOUGH]
    if len(measured) < len(table.rows):
        return None
    means = [one.mean for one in measured if one.mean is not None]
    if len(means) < len(measured):
        return f"{where}: a model diverged", False
    apart = max(means) - min(means)
    return f"{where}: within {apart:.2f} points", apart <= limit


def analysis_of_variance(figures: list[Figure]) -> float | None:
    """The probability of a one-way analysis of variance over rows that ran as long as planned.

    None where it says nothing.
    """
    groups = [
        [value for value in one.values.values() if value is not None] for one in figures if one.complete
    ]
    if len(groups) < 2 or any(len(group) < 2 for group in groups):
        return None
    p = float(stats.f_oneway(*groups).pvalue)
    return None if math.isnan(p) else p


def probability(p: float) -> str:
    """A probability with two digits.

    >>> probability(0.3456), probability(0.00012), probability(1e-9)
    ('0.35', '0.00012', 'below 1e-6')
    """
    return "below 1e-6" if p < 1e-6 else f"{p:.2g}"
