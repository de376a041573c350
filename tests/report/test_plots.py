"""The plot of scores: the right numbers, distinguishable lines, everything inside the image."""

from __future__ import annotations

import math
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from consilience.errors import UserError
from consilience.problems import Classification, NextToken, Regression
from consilience.report.choosing import best_records
from consilience.report.plots import COLOURS, DASHES, MARKERS, score_figure, score_plot

SETTINGS = ("setting 0", "setting 1")
ACCURACY, R2, PERPLEXITY = Classification.metric, Regression.metric, NextToken.metric


def records_of(scores, setting="star", method="fedavg", metric=ACCURACY):
    """Records from scores [seeds][rounds]; "absent" is a round without evaluation."""
    return [
        {"setting": setting, "method": method, "seed": seed, "round": number}
        | ({} if score == "absent" else {f"test_{metric.name}": score})
        for seed, curve in enumerate(scores)
        for number, score in enumerate(curve, start=1)
    ]


def many(settings: int, methods: int, seeds: int, rounds: int):
    random = np.random.default_rng(0)
    return [
        record
        for setting in range(settings)
        for method in range(methods)
        for record in records_of(
            random.uniform(0.1, 1, (seeds, rounds)).tolist(), f"setting {setting}", f"method {method}"
        )
    ]


def test_means_and_bands_by_hand():
    # Round 1: 50 and 70 %, so 60 ± sqrt(200); round 2: 80 and 80 %.
    figure = score_figure(records_of([[0.5, 0.8], [0.7, 0.8]]), ACCURACY, "title")
    (axes,) = figure.axes
    (line,), (band,) = axes.lines, axes.collections
    np.testing.assert_allclose(line.get_xydata(), [[1, 60], [2, 80]])
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6)}
    spread = math.sqrt(200)
    assert corners == {(1, round(60 - spread, 6)), (1, round(60 + spread, 6)), (2, 80)}
    assert axes.get_xlabel() == "round"
    assert axes.get_ylabel() == "test accuracy (%)"
    assert figure.get_suptitle() == "title"


@pytest.mark.parametrize(
    ("accuracies", "shown"),
    [
        ([["absent", 0.5, "absent", 0.7]], [[2, 50], [4, 70]]),
        ([[0.5, math.nan, math.inf, None, 0.7]], [[1, 50], [5, 70]]),
        ([[0.5, math.nan], [0.7, 0.9]], [[1, 60], [2, 90]]),
        ([[0.8]], [[1, 80]]),
    ],
)
def test_missing_and_non_finite_evaluations_are_skipped(accuracies, shown):
    (line,) = score_figure(records_of(accuracies), ACCURACY, "").axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), shown)


@pytest.mark.parametrize("accuracies", [[["absent"]], [[math.nan, None]]])
def test_a_panel_without_accuracies_says_so(accuracies):
    records = records_of([[0.5, 0.6]], "ring") + records_of(accuracies, "star")
    ring, star = score_figure(records, ACCURACY, "").axes
    assert [text.get_text() for text in star.texts] == ["no accuracy recorded"]
    assert not ring.texts
    (alone,) = score_figure(records_of(accuracies), ACCURACY, "").axes
    assert alone.get_ylim() == (0, 100)


def test_one_panel_for_each_setting_and_one_look_for_each_method():
    records = [
        *records_of([[0.5, 0.6]], "star", "fedavg"),
        *records_of([[0.5, 0.6]], "star", "hwa"),
        *records_of([[0.5, 0.9]], "ring", "hwa"),
    ]
    figure = score_figure(records, ACCURACY, "")
    star, ring = figure.axes
    assert [axes.get_title(loc="left") for axes in (star, ring)] == ["star", "ring"]
    assert star.get_ylim() == ring.get_ylim()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "hwa"]
    looks = [
        (to_hex(line.get_color()), line.get_linestyle(), line.get_marker())
        for line in (star.lines[1], ring.lines[0], legend.legend_handles[1])
    ]
    assert len(set(looks)) == 1
    assert score_figure(records[:2], ACCURACY, "").axes[0].get_title(loc="left") == ""


def test_looks_differ_even_without_colour():
    for one, other in combinations((COLOURS, DASHES, MARKERS), 2):
        assert len(set(one)) == len(one)
        assert math.gcd(len(one), len(other)) == 1
    (axes,) = score_figure(many(1, 8, 1, 3), ACCURACY, "").axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 8
    assert len({(line.is_dashed(), line.get_marker()) for line in axes.lines}) > len(MARKERS)


def test_more_than_eight_methods_are_further_panels():
    figure = score_figure(many(2, 12, 1, 3), ACCURACY, "")
    assert [len(axes.lines) for axes in figure.axes] == [8, 8, 4, 4]
    legends = [legend for part in figure.subfigs for legend in part.legends]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends] == [
        [f"method {number}" for number in range(8)],
        [f"method {number}" for number in range(8, 12)],
    ]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_of_a_sweep_the_best_eight_are_drawn_and_a_note_says_so():
    records = [
        record | {"swept": {"mu": number}}
        for number in range(11)
        for record in records_of([[0.9 - 0.05 * number, 0.05 * number]], method=f"fedprox mu={number}")
    ]
    diverged = [
        record | {"swept": {"mu": 99}} for record in records_of([[0.5, None]], method="fedprox mu=99")
    ]
    (axes,) = score_figure(diverged + records, ACCURACY, "").axes
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == pytest.approx(range(15, 55, 5))
    assert axes.get_title(loc="left") == "the best 8 of 12"
    weak = [record | {"swept": {"mu": "any"}} for record in records_of([[0.1, 0.01]], method="fagh mu=any")]
    (axes,) = score_figure(records + weak, ACCURACY, "").axes  # every method has its best variant there
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == pytest.approx([1, *range(20, 55, 5)])


def test_the_records_of_the_best_eight():
    records = many(2, 10, 2, 3)
    kept = best_records(records, ACCURACY)
    assert {
        setting: len({r["method"] for r in kept if r["setting"] == setting}) for setting in SETTINGS
    } == dict.fromkeys(SETTINGS, 8)
    finals = {True: [], False: []}
    for record in records:
        if record["round"] == 3 and record["seed"] == 0 and record["setting"] == SETTINGS[0]:
            pair = [
                r
                for r in records
                if (r["setting"], r["method"], r["round"]) == (record["setting"], record["method"], 3)
            ]
            finals[record in kept].append(sum(r["test_accuracy"] for r in pair))
    assert min(finals[True]) > max(finals[False])
    assert best_records(records[:30], ACCURACY) == records[:30]


@pytest.mark.parametrize(
    ("seeds", "labels"), [(1, ["fedavg"]), (3, ["fedavg", "± 1 standard deviation\nover 3 seeds"])]
)
def test_bands_are_labelled_with_what_they_are(seeds, labels):
    (legend,) = score_figure(records_of([[0.5, 0.6]] * seeds), ACCURACY, "").legends
    assert [text.get_text() for text in legend.get_texts()] == labels


@pytest.mark.parametrize("rounds", [1, 2, 7, 30, 100, 1000])
def test_round_ticks_are_whole_numbers(rounds):
    figure = score_figure(many(1, 1, 1, rounds), ACCURACY, "")
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    ticks = [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)
    assert (0 in ticks) == (rounds >= 100)  # where there is room for it, 0 is the natural first label


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 6, 3, 30), (2, 4, 3, 30), (5, 9, 1, 12), (1, 30, 1, 5)], ids=str
)
def test_everything_stays_inside_and_the_legend_beside_the_data(shape):
    figure = score_figure(many(*shape), ACCURACY, "a title of ordinary length")
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height
    for part in figure.subfigs or [figure]:
        (legend,) = part.legends
        assert all(axes.get_window_extent().x1 <= legend.get_window_extent().x0 for axes in part.axes)
    assert all(axes.get_window_extent().width > 1.8 * figure.dpi for axes in figure.axes)


def test_the_file_repeats_and_settings_stay(tmp_path):
    before = dict(matplotlib.rcParams)
    for name in ("a.png", "b.png", "a.pdf", "b.pdf", "a.svg", "b.svg"):
        score_plot(many(2, 3, 3, 10), ACCURACY, tmp_path / name, "title")
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "ab")
        assert first == second
        assert first.startswith(start)
    with pytest.raises(UserError, match=r"a\.gif: plots are written as png, pdf, svg"):
        score_plot(many(1, 1, 1, 2), ACCURACY, tmp_path / "a.gif", "title")
    assert dict(matplotlib.rcParams) == before
    with Image.open(tmp_path / "a.png") as image:
        assert "Software" not in image.info
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)


def test_nothing_to_plot_is_refused():
    with pytest.raises(UserError, match="no metrics records to plot"):
        score_figure([], ACCURACY, "")


def test_a_metric_that_is_not_a_share_is_drawn_as_it_is():
    records = records_of([[-3.0, -0.5, 0.75], [-1.0, 0.5, 0.75]], metric=R2)
    (axes,) = score_figure(records, R2, "").axes
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xydata(), [[1, -2], [2, 0], [3, 0.75]])
    assert axes.get_ylabel() == "test r2"
    bottom, top = axes.get_ylim()
    assert bottom < -2 - math.sqrt(2)  # the band is not cut off
    assert top < 1.5
    nothing = score_figure(records_of([["absent"]]), R2, "").axes[0]
    assert [text.get_text() for text in nothing.texts] == ["no r2 recorded"]
    assert nothing.get_ylim() == (0, 1)


def test_a_metric_where_lower_is_better_is_drawn_as_it_is():
    (axes,) = score_figure(records_of([[500.0, 120.0]], metric=PERPLEXITY), PERPLEXITY, "").axes
    assert axes.get_ylabel() == "test perplexity"
    bottom, top = axes.get_ylim()
    assert bottom < 120 < 500 < top
