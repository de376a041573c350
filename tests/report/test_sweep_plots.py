"""Sweeps: lines over one number, heat maps over two, and the best marked where there is a best."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from consilience.errors import UserError
from consilience.problems import Classification, NextToken
from consilience.report.summary import MethodSummary, summarise
from consilience.report.sweep_plots import is_sweep, sweep_figure
from consilience.sweeping import label_of

ACCURACY, PERPLEXITY = Classification.metric, NextToken.metric


def summary(score, method="fedprox", setting="star", metric=ACCURACY, seeds=1, of_setting=(), **swept):
    """A method that ends with some score in every seed, a hundredth apart."""
    numbers = [
        label_of({k: v for k, v in swept.items() if (k in of_setting) is part}) for part in (True, False)
    ]
    setting, method = (" ".join(filter(None, pair)) for pair in zip((setting, method), numbers, strict=True))
    records = [
        {
            **{"setting": setting, "method": method, "seed": seed, "round": 1, "swept": swept},
            **{"bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "samples": 1},
            f"test_{metric.name}": None if score is None else score + 0.01 * seed,
        }
        for seed in range(seeds)
    ]
    (found,) = summarise(records, (), metric)
    return found


def stars(axes):
    return [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "*"]


def lines(axes):
    return [line.get_xydata().tolist() for line in axes.lines if line.get_marker() != "*"]


def frames(axes):
    return {
        (patch.get_x() + 0.5, patch.get_y() + 0.5) for patch in axes.patches if isinstance(patch, Rectangle)
    }


def test_the_numbers_of_a_variant_are_told_from_its_name():
    found = summary(0.5, setting="ring 2", of_setting=("alpha",), alpha=0.1, mu=1.0)
    assert (found.setting, found.method) == ("ring 2 alpha=0.1", "fedprox mu=1.0")
    assert found.base == ("ring 2", "fedprox")
    assert found.to_json()["swept"] == {"alpha": 0.1, "mu": 1.0}


def test_one_number_is_a_line_with_its_best_marked():
    scores = {10.0: 0.3, 0.1: 0.5, 1.0: 0.75}
    (axes,) = sweep_figure([summary(score, mu=mu) for mu, score in scores.items()], ACCURACY, "").axes
    assert lines(axes) == [[[0.1, 50], [1.0, 75], [10.0, 30]]]
    assert stars(axes) == [(1.0, 75)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("mu", "final test accuracy (%)")
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "1", "10"]


def test_bands_are_over_seeds_and_say_so():
    figure = sweep_figure([summary(0.5, mu=mu, seeds=3) for mu in (1.0, 2.0)], ACCURACY, "")
    (axes,) = figure.axes
    assert axes.get_xscale() == "linear"
    (band,) = axes.collections
    np.testing.assert_allclose(sorted(set(band.get_paths()[0].vertices[:, 1].round(6))), [50, 52])
    ((legend,),) = [part.legends for level in figure.subfigs for part in level.subfigs]
    assert [text.get_text() for text in legend.get_texts()][-1] == "± 1 standard deviation\nover 3 seeds"


def test_what_does_not_use_the_number_is_level():
    summaries = [summary(0.5, lr=0.1), summary(0.6, lr=0.2), summary(0.4, "fagh", lr="any")]
    (axes,) = sweep_figure(summaries, ACCURACY, "").axes
    assert lines(axes) == [[[0.1, 50], [0.2, 60]], [[0.1, 40], [0.2, 40]]]
    assert stars(axes) == [(0.2, 60)]


def test_settings_are_not_better_or_worse():
    """More even splits give better scores; that makes none of them the best choice."""
    summaries = [
        summary(score, method, of_setting=("alpha",), alpha=alpha)
        for method in ("fedavg", "hwa")
        for alpha, score in ((0.1, 0.4), (1.0, 0.6))
    ]
    (axes,) = sweep_figure(summaries, ACCURACY, "").axes
    assert len(lines(axes)) == 2
    assert stars(axes) == []


def test_two_numbers_are_a_heat_map_with_its_best_framed():
    summaries = [
        summary(None if (mu, lr) == (10.0, 0.2) else 0.1 * i + 0.05 * j, mu=mu, lr=lr)
        for i, mu in enumerate((0.1, 1.0, 10.0))
        for j, lr in enumerate((0.1, 0.2))
    ]
    (axes,) = sweep_figure(summaries, ACCURACY, "").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("mu", "lr")
    np.testing.assert_allclose(axes.images[0].get_array().filled(-1), [[0, 10, 20], [5, 15, -1]])
    assert frames(axes) == {(2, 0)}
    assert [text.get_text() for text in axes.texts] == ["0.0", "5.0", "10.0", "15.0", "20.0", "–"]


def test_where_a_number_makes_settings_each_has_its_best():
    summaries = [
        summary(score, of_setting=("alpha",), alpha=alpha, mu=mu)
        for alpha, mu, score in ((0.1, 1, 0.4), (0.1, 2, 0.5), (1.0, 1, 0.9), (1.0, 2, 0.8))
    ]
    (axes,) = sweep_figure(summaries, ACCURACY, "").axes
    assert frames(axes) == {(0, 1), (1, 0)}
    assert "of each setting" in axes.get_title(loc="left").replace("\N{NO-BREAK SPACE}", " ")


def test_of_more_numbers_cells_are_the_best_over_the_others():
    summaries = [
        summary(0.1 * a + 0.2 * b + 0.3 * c, x=a, y=b, z=c) for a in (0, 1, 2) for b in (0, 1) for c in (0, 1)
    ]
    (axes,) = sweep_figure(summaries, ACCURACY, "").axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[30, 40, 50], [50, 60, 70]])
    assert "best over z" in axes.get_title(loc="left")


def test_what_has_diverged_is_marked_and_no_best():
    summaries = [summary(score, mu=mu) for mu, score in ((1.0, 0.4), (2.0, None), (3.0, 0.3))]
    figure = sweep_figure(summaries, ACCURACY, "")
    (axes,) = figure.axes
    (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert cross.get_xdata()[0] == 2.0
    assert stars(axes) == [(1.0, 40)]
    ((legend,),) = [part.legends for level in figure.subfigs for part in level.subfigs]
    assert [text.get_text() for text in legend.get_texts()] == ["fedprox", "best", "diverged"]


def test_where_less_is_better_the_least_is_the_best():
    summaries = [summary(score, metric=PERPLEXITY, mu=mu) for mu, score in ((1.0, 40.0), (2.0, 9.0))]
    (axes,) = sweep_figure(summaries, PERPLEXITY, "").axes
    assert stars(axes) == [(2.0, 9.0)]


def test_at_most_eight_lines_a_panel():
    summaries = [summary(0.5, f"method {i}", mu=mu) for i in range(11) for mu in (1.0, 2.0)]
    assert [len(lines(axes)) for axes in sweep_figure(summaries, ACCURACY, "").axes] == [8, 3]


CASES = {
    "a line": [summary(0.5, mu=mu) for mu in (1, 2)],
    "long names": [summary(0.5, "a rather long name of a method weighting=uniform", mu=m) for m in (1, 2)],
    "a map": [summary(0.1 * a, mu=a, lr=b) for a in range(5) for b in range(4)],
    "a large map": [summary(0.01 * a, mu=a, lr=b) for a in range(20) for b in range(30)],
    "both": [summary(0.1 * a, mu=a, lr=b) for a in range(5) for b in range(4)]
    + [summary(0.1 * b, "fedavg", lr=b) for b in range(4)],
    "four maps": [summary(0.1, f"method {i}", mu=a, lr=b) for i in range(4) for a in (1, 2) for b in (1, 2)],
    "everything diverged": [summary(None, mu=mu) for mu in (1, 2)],
}


@pytest.mark.parametrize("case", CASES)
def test_everything_stays_inside(case: str):
    figure = sweep_figure(CASES[case], ACCURACY, "a title of ordinary length")
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


def test_nothing_to_plot_is_refused():
    summaries: list[MethodSummary] = [summary(0.5)]
    assert not is_sweep(summaries)
    with pytest.raises(UserError, match="no sweep to plot"):
        sweep_figure(summaries, ACCURACY, "")
