"""The score by which methods are compared: which of two is better, and how it is shown."""

from __future__ import annotations

import math

import pytest

from consilience.problems import PROBLEMS, Metric

ACCURACY, R2, PERPLEXITY = Metric("accuracy", percent=True), Metric("r2"), Metric("perplexity", False)


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        (ACCURACY, [0.5, math.inf, 0.75, math.nan], 0.75),
        (R2, [-2.0, -0.5], -0.5),
        (PERPLEXITY, [20.0, -math.inf, 12.0, math.nan], 12.0),
    ],
)
def test_the_best_is_finite(metric, values, best):
    assert metric.best(iter(values)) == best


@pytest.mark.parametrize("metric", [R2, PERPLEXITY])
def test_nothing_is_best_of_nothing(metric):
    assert math.isnan(metric.best([]))
    assert math.isnan(metric.best([math.nan, math.inf, -math.inf]))


def test_what_is_reached():
    assert R2.reached(0.5, 0.5)
    assert not R2.reached(0.4, 0.5)
    assert PERPLEXITY.reached(12.0, 12.0)
    assert not PERPLEXITY.reached(12.1, 12.0)
    assert not any(metric.reached(math.nan, 1.0) for metric in (R2, PERPLEXITY))
    assert (R2.fraction(0.8, 0.5), PERPLEXITY.fraction(9.0, 0.9)) == (0.4, 10.0)


def test_a_share_is_shown_in_per_cent():
    assert (ACCURACY.shown(0.81234), ACCURACY.shown_with_unit(0.81234)) == ("81.23", "81.23 %")
    assert (ACCURACY.shown_spread(0.00449), ACCURACY.axis) == ("0.45", "test accuracy (%)")
    assert (ACCURACY.scale, ACCURACY.bounds) == (100, (0, 100))


def test_others_are_shown_as_they_are():
    assert (R2.shown_with_unit(-0.81234), PERPLEXITY.shown_with_unit(12.3)) == ("-0.8123", "12.30")
    assert (R2.axis, R2.scale, R2.bounds) == ("test r2", 1, (-math.inf, math.inf))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.000"),
        (0.000123449, "0.0001234"),
        (999.94, "999.9"),
        (999.96, "1000"),
        (50_257.4, "50257"),
        (999_999.4, "999999"),
        (1e21, "1.000e+21"),
    ],
)
def test_four_digits_or_a_whole_number(value, text):
    assert PERPLEXITY.shown(value) == text


def test_every_problem_has_a_metric_of_its_own():
    assert len({problem.metric.name for problem in PROBLEMS.values()}) == len(PROBLEMS) > 1
