"""Which methods of a setting are shown where there are more than can be told apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from consilience.problems import Metric
from consilience.report.summary import Record, runs_by_method, score_curve
from consilience.sweeping import without_numbers

CURVES = 8
"""How many curves a panel has at most."""

Row = tuple[str, str]
"""A setting and a method."""
Runs = Mapping[int, Mapping[int, Record]]
"""The records of a row by seed and round."""


def worse(rows: Sequence[Row], methods: Mapping[Row, Runs], metric: Metric) -> list[Row]:
    """The rows that have no place among the best eight, by the mean final score over seeds.

    The best variant of each method comes first, as long as there are places.
    """

    def final(row: Row) -> float:
        curves = [score_curve(run, f"test_{metric.name}") for run in methods[row].values()]
        lasts = [list(curve.values())[-1] if curve else math.nan for curve in curves]
        mean = statistics.fmean(lasts)
        return (-mean if metric.higher_is_better else mean) if math.isfinite(mean) else math.inf

    def family(row: Row) -> str:
        numbers = next(iter(next(iter(methods[row].values())).values())).get("swept", {})
        return without_numbers(row[1], cast("Mapping[str, object]", numbers))

    ranked = sorted(rows, key=final)
    firsts = {family(row): row for row in reversed(ranked)}
    return sorted(ranked, key=lambda row: firsts[family(row)] is not row)[CURVES:]


def best_records(records: Sequence[Record], metric: Metric) -> list[Record]:
    """The records of at most eight methods of each setting, the best ones."""
    methods = runs_by_method(records)
    settings = dict.fromkeys(setting for setting, _ in methods)
    left_out = {
        row for one in settings for row in worse([row for row in methods if row[0] == one], methods, metric)
    }
    return [record for record in records if (record["setting"], record["method"]) not in left_out]
