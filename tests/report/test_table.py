"""The table: what its cells say, and that nothing is cut off at 80 columns."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from consilience.problems import Classification, Metric, NextToken, Regression
from consilience.report.summary import MethodSummary, RoundsTo
from consilience.report.table import comparison_table
from consilience.report.units import human_bytes

ACCURACY, R2, PERPLEXITY = Classification.metric, Regression.metric, NextToken.metric


def summary(
    setting: str = "star",
    method: str = "fedavg",
    final: float | None = 0.91234,
    seeds: int = 3,
    rounds_to: dict[str, RoundsTo] | None = None,
    samples_per_s: float | None = 4_123_000,
    metric: Metric = ACCURACY,
) -> MethodSummary:
    return MethodSummary(
        setting=setting,
        method=method,
        metric=metric,
        seeds=seeds,
        rounds=30,
        final_mean=final,
        final_std=None if final is None else 0.00449 if seeds > 1 else 0.0,
        best_mean=None if final is None else 0.92,
        best_std=None if final is None else 0.001,
        rounds_to=rounds_to or {},
        bytes_up=1_234_567,
        bytes_down=2_500_000_000,
        samples_per_s=samples_per_s,
        dropped=0,
    )


def rendered(summaries, targets=(), width=80, styled=False, metric=ACCURACY) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=styled)
    console.print(comparison_table(summaries, targets, metric))
    return console.file.getvalue()


def test_cells():
    text = rendered([summary(method="fedprox mu=0.1")])
    cells = re.split(" {2,}", text.splitlines()[-1].strip())
    assert cells == ["fedprox mu=0.1", "91.23 ± 0.45", "92.00", "1.23 MB", "2.50 GB", "4.12 M"]
    assert "setting" not in text


@pytest.mark.parametrize(
    ("reached", "cell"),
    [
        ({"mean": 12.34, "reached": 3, "seeds": 3}, "12.3"),
        ({"mean": 12.34, "reached": 2, "seeds": 3}, "12.3 (2/3)"),
        ({"mean": None, "reached": 0, "seeds": 3}, "–"),
    ],
)
def test_rounds_to_a_target(reached, cell):
    text = rendered([summary(rounds_to={"0.9": reached})], [0.9])
    assert "to 90%" in text
    assert f"  {cell}  1.23 MB" in text


def test_one_seed_has_no_spread_and_nothing_is_a_dash():
    assert "±" not in rendered([summary(seeds=1)])
    assert rendered([summary(final=None, samples_per_s=None)]).splitlines()[-1].split().count("–") == 3


def test_the_best_of_each_setting_is_bold():
    rows = [
        summary("star", "a", 0.80),
        summary("ring", "a", 0.70),
        summary("star", "b", 0.95),
        summary("ring", "b", None),
    ]
    table = comparison_table(rows, [], ACCURACY)
    assert [column.header for column in table.columns][:2] == ["setting", "method"]
    bold = [str(cell) for cell in table.columns[2].cells if cell.style == "bold"]
    assert bold == ["95.00 ± 0.45", "70.00 ± 0.45"]
    assert [str(cell) for cell in table.columns[0].cells] == ["star", "star", "ring", "ring"]
    assert "\x1b[1m95.00 ± 0.45" in rendered(rows, styled=True)
    assert "\x1b" not in rendered(rows)
    nothing = comparison_table([summary(final=None)], [], ACCURACY)
    assert [cell.style for cell in nothing.columns[1].cells] == [""]


@pytest.mark.parametrize("targets", [[], [0.9], [0.5, 0.975], [0.5, 0.8, 0.9]], ids=len)
@pytest.mark.parametrize("settings", [["star"], ["star", "erdos-renyi p=0.2"]], ids=len)
def test_nothing_is_cut_off_at_80_columns(settings, targets):
    reached: dict[str, RoundsTo] = {
        str(target): {"mean": 123.4, "reached": 9, "seeds": 10} for target in targets
    }
    methods = ["fedavg", "dechw beta=0.9, layers=all"]
    rows = [summary(setting, method, rounds_to=reached) for setting in settings for method in methods]
    text = rendered(rows, targets)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for cell, times in {
        "91.23 ± 0.45": 1,
        "layers=": 0.5,  # every other row; room is left for the words of labels
        "1.23 MB": 1,
        "4.12 M": 1,
        "123.4": len(targets),
        "(9/10)": len(targets),
    }.items():
        assert text.count(cell) == times * len(rows)


def test_labels_are_not_markup():
    assert "fedavg [bold] [/x]" in rendered([summary(method="fedavg [bold] [/x]")])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (5, "5 B"),
        (999, "999 B"),
        (999.5, "1.00 kB"),
        (1000, "1.00 kB"),
        (9_996, "10.0 kB"),
        (45_600, "45.6 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (123_400_000, "123 MB"),
        (2.5e9, "2.50 GB"),
        (7e12, "7.00 TB"),
    ],
)
def test_human_bytes(count, text):
    assert human_bytes(count) == text


def test_clients_own_models_get_a_column_where_a_method_has_them():
    plain, personal = summary(), replace(summary(method="pfedme"), personal_mean=0.9876)
    assert " own " not in rendered([plain])
    lines = rendered([plain, personal]).splitlines()
    assert " own " in lines[0]
    assert [("98.76" in line) for line in lines if "± 0.45" in line] == [False, True]


def test_the_lowest_is_bold_where_lower_is_better():
    rows = [
        summary(method="a", final=20.5, metric=PERPLEXITY),
        summary(method="b", final=12.25, metric=PERPLEXITY),
        summary(method="c", final=None, metric=PERPLEXITY),
    ]
    table = comparison_table(rows, [], PERPLEXITY)
    assert [str(cell) for cell in table.columns[1].cells if cell.style == "bold"] == ["12.25 ± 0.0045"]


def test_a_metric_that_is_not_a_share_has_no_per_cent():
    reached: dict[str, RoundsTo] = {"-0.25": {"mean": 3.0, "reached": 3, "seeds": 3}}
    one = replace(summary(final=-0.5, rounds_to=reached, metric=R2), personal_mean=0.75)
    text = rendered([one], [-0.25], metric=R2)
    assert "%" not in text
    assert [column.header for column in comparison_table([one], [-0.25], R2).columns] == [
        "method",
        "r2",
        "best",
        "own",
        "rounds\nto -0.25",
        "up",
        "down",
        "samples\nper s",
    ]
    cells = re.split(" {2,}", text.splitlines()[-1].strip())
    assert cells[:5] == ["fedavg", "-0.5000 ± 0.0045", "0.9200", "0.7500", "3.0"]


def test_other_metrics_fit_into_80_columns_too():
    targets = [-0.25, 0.5, 0.875]
    reached: dict[str, RoundsTo] = {
        str(target): {"mean": 123.4, "reached": 9, "seeds": 10} for target in targets
    }
    rows = [
        summary(setting, "dechw beta=0.9, layers=all", -0.123456, rounds_to=reached, metric=R2)
        for setting in ("star", "erdos-renyi p=0.2")
    ]
    text = rendered(rows, targets, metric=R2)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("-0.1235 ± 0.0045") == 2
