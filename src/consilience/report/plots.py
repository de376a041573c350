"""Accuracy over rounds: a panel for each setting, a line for each method, a band for the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from consilience.errors import UserError
from consilience.report.bubbles import FONT, GRID, INK
from consilience.report.summary import Record, accuracy_curve, runs_by_method

# Okabe and Ito's colours without yellow, which is lost on white. The lengths of these have no common
# divisor: colour, dashes and marker together repeat only after 140 methods.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES: tuple[Literal["-"] | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1.5, 1, 1.5)),
)
MARKERS = ("o", "s", "^", "D", "v")
MARKERS_PER_LINE = 8


def accuracy_plot(records: Sequence[Record], path: Path, title: str) -> None:
    """Draw test accuracy over rounds into a PNG file.

    Args:
        records: as in a metrics file; evaluations that are absent or not finite are skipped.
        path: where to write.
        title: a line above the plot.
    """
    figure = accuracy_figure(records, title)
    # Without the version of the drawing library the same records always give the same file.
    figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


def accuracy_figure(records: Sequence[Record], title: str) -> Figure:
    """The figure of `accuracy_plot`: means over seeds, in bands of ± one sample standard deviation."""
    if not records:
        raise UserError("no metrics records to plot; run at least one round")
    methods = runs_by_method(records)
    settings = list(dict.fromkeys(setting for setting, _ in methods))
    # One style for each label, so that a method looks the same in every setting.
    labels = list(dict.fromkeys(label for _, label in methods))

    panel = min(max(10 / len(settings), 2.4), 5)  # this and all lengths in inches
    width = 0.5 + panel * len(settings) + 0.7 + 0.075 * max(map(len, labels))
    figure = Figure((width, max(3.6, 0.7 + 0.2 * len(labels))), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panels = dict(
        zip(settings, figure.subplots(1, len(settings), sharey=True, squeeze=False)[0], strict=True)
    )
    for (setting, label), runs in methods.items():
        _draw(panels[setting], labels.index(label), [accuracy_curve(run) for run in runs.values()])
    for setting, axes in panels.items():
        last = max(max(run) for row, runs in methods.items() if row[0] == setting for run in runs.values())
        style(axes, last)
        if len(settings) > 1:
            axes.set_title(setting, fontsize=FONT, color=INK, loc="left")
    first = panels[settings[0]]
    first.set_ylabel("test accuracy (%)", fontsize=FONT, color=INK)
    bottom, top = first.get_ylim() if any(axes.lines for axes in panels.values()) else (0, 100)
    first.set_ylim(max(bottom, -2), min(top, 102))  # a marker at 0 % or 100 % fits, senseless ticks do not
    figure.suptitle(title, x=0.01, ha="left", wrap=True, fontsize=FONT + 2, color=INK)
    figure.legend(
        handles=[line(index, [], [], label) for index, label in enumerate(labels)],
        loc="outside right center",
        fontsize=FONT - 1,
        labelcolor=INK,
        frameon=False,
        handlelength=3,
    )
    return figure


def _draw(axes: Axes, index: int, curves: Sequence[Mapping[int, float]]) -> None:
    """One method in one setting; a round's mean is over the seeds with a finite accuracy in it."""
    rounds = sorted({number for curve in curves for number in curve})
    percents = {
        number: [100 * curve[number] for curve in curves if math.isfinite(curve.get(number, math.nan))]
        for number in rounds
    }
    shown = {number: values for number, values in percents.items() if values}
    if not shown:
        return
    means = [statistics.fmean(values) for values in shown.values()]
    spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in shown.values()]
    axes.add_line(line(index, list(shown), means))
    axes.fill_between(
        list(shown),
        [mean - spread for mean, spread in zip(means, spreads, strict=True)],
        [mean + spread for mean, spread in zip(means, spreads, strict=True)],
        color=COLOURS[index % len(COLOURS)],
        alpha=0.15,
        linewidth=0,
    )


def line(index: int, rounds: Sequence[int], percents: Sequence[float], label: str = "") -> Line2D:
    """A line in the style of method number `index`, with a few markers apart from its neighbours'."""
    step = max(math.ceil(len(rounds) / MARKERS_PER_LINE), 1)
    return Line2D(
        rounds,
        percents,
        color=COLOURS[index % len(COLOURS)],
        linestyle=DASHES[index % len(DASHES)],
        linewidth=1.4,
        marker=MARKERS[index % len(MARKERS)],
        markersize=4,
        markevery=(index % step, step),
        label=label,
    )


def style(axes: Axes, last: int) -> None:
    """A light grid, no frame, whole rounds from 1 to `last`; a note where there is nothing to see."""
    margin = max(0.5, 0.02 * last)
    axes.set_xlim(1 - margin, last + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel("round", fontsize=FONT, color=INK)
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    if not axes.lines:
        axes.text(
            0.5, 0.5, "no accuracy recorded", transform=axes.transAxes, ha="center", fontsize=FONT, color=INK
        )
