"""Scores over rounds: a panel for each setting, a line for each method, a band for the seeds.

What all plots over rounds have in common follows after it.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from consilience.errors import UserError
from consilience.problems import Metric
from consilience.report.bubbles import FONT, GRID, INK
from consilience.report.choosing import CURVES, Row, Runs, worse
from consilience.report.saving import Picture, save
from consilience.report.summary import Record, runs_by_method, score_curve

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

COLUMNS = 4
"""Panels side by side."""
BAND, SHADE = "± 1 standard deviation", 0.15
"""What bands are, and how dark."""

BESIDE, LINE = 2.3, 0.175  # inches: the width of legends beside panels, and the height of a line in them


def score_plot(records: Sequence[Record], metric: Metric, path: Path, title: str) -> None:
    """Draw a test score over rounds into a file; its ending chooses the format.

    Args:
        records: as in a metrics file; evaluations that are absent or not finite are skipped.
        metric: the score.
        path: where to write.
        title: a line above the plot.
    """
    save(score_figure(records, metric, title), path)


def score_figure(records: Sequence[Record], metric: Metric, title: str) -> Figure:
    """The figure of `score_plot`: means over seeds, in bands of ± one sample standard deviation.

    A panel has at most eight curves. More variants of a sweep are the best eight, with each method's best
    among them, and a note says so; more methods are further panels below, each with a legend of its own.
    """
    if not records:
        raise UserError("no metrics records to plot; run at least one round")
    methods = runs_by_method(records)
    settings = list(dict.fromkeys(setting for setting, _ in methods))
    notes: dict[str, str] = {}
    if any("swept" in record for record in records):
        for setting in settings:
            rows = [row for row in methods if row[0] == setting]
            for row in worse(rows, methods, metric):
                del methods[row]
                notes[setting] = f"the best {CURVES} of {len(rows)}"
    # One style for each label, so that a method looks the same in every setting.
    labels = list(dict.fromkeys(label for _, label in methods))
    most = max(sum(row[0] == setting for row in methods) for setting in settings)
    step = CURVES if most > CURVES else len(labels)
    parts = [labels[start : start + step] for start in range(0, len(labels), step)]

    deep = math.ceil(len(settings) / COLUMNS)
    columns = math.ceil(len(settings) / deep)
    panel = min(max(10 / columns, 2.4), 5)  # this and all lengths in inches
    width = 0.5 + panel * columns + 0.7 + 0.075 * max(*map(len, labels), len(BAND))
    height = max(3.6 if deep == 1 else 2.8 * deep, 0.9 + 0.2 * min(step, len(labels)))
    figure = canvas((width, height * len(parts)), title)
    blocks = [figure] if len(parts) == 1 else list(figure.subfigures(len(parts), 1, squeeze=False)[:, 0])
    drawn = [
        _block(block, part, settings, methods, metric, columns)
        for block, part in zip(blocks, parts, strict=True)
    ]
    panels = [axes for block in drawn for axes in block.values()]
    limits = [axes.get_ylim() for axes in panels if axes.lines] or [(0, metric.scale)]
    bounds = within_bounds(metric, min(low for low, _ in limits), max(high for _, high in limits))
    for block in drawn:
        for number, (setting, axes) in enumerate(block.items()):
            last = max(
                max(run) for row, runs in methods.items() if row[0] == setting for run in runs.values()
            )
            style(axes, last, metric.name)
            axes.set_ylim(bounds)
            name = [setting] if len(settings) > 1 else []
            heading = ": ".join([*name, *([notes[setting]] if setting in notes else [])])
            axes.set_title(folded(heading, 36), fontsize=FONT, color=INK, loc="left")
            if number % columns == 0:
                axes.set_ylabel(metric.axis, fontsize=FONT, color=INK)
            else:
                axes.tick_params(labelleft=False)
    return figure


def _block(
    part: Figure | SubFigure,
    labels: Sequence[str],
    settings: Sequence[str],
    methods: Mapping[Row, Runs],
    metric: Metric,
    columns: int,
) -> dict[str, Axes]:
    """A panel for each setting with some of the methods, and their legend beside."""
    rows = math.ceil(len(settings) / columns)
    grid = part.subplots(rows, columns, squeeze=False).flatten()
    for unused in grid[len(settings) :]:
        unused.remove()
    panels = dict(zip(settings, grid, strict=False))
    seeds = set()
    for (setting, label), runs in methods.items():
        if label in labels:
            curves = [score_curve(run, f"test_{metric.name}") for run in runs.values()]
            _draw(panels[setting], labels.index(label), curves, metric.scale)
            seeds.add(len(runs))
    handles = [line(index, [], [], label) for index, label in enumerate(labels)]
    part.legend(
        handles=[*handles, *band_handles(seeds)],
        loc="outside right center",
        fontsize=FONT - 1,
        labelcolor=INK,
        frameon=False,
        handlelength=3,
    )
    return panels


def band_handles(seeds: Collection[int]) -> list[Patch]:
    """What a legend says about bands, by the numbers of seeds behind lines; nothing if all are 1."""
    if max(seeds, default=1) < 2:
        return []
    over = f"over {max(seeds)} seeds" if len(seeds) == 1 else "over seeds"
    return [Patch(color=INK, alpha=SHADE, linewidth=0, label=f"{BAND}\n{over}")]


def _draw(axes: Axes, index: int, curves: Sequence[Mapping[int, float]], scale: float) -> None:
    """One method in one setting; a round's mean is over the seeds with a finite score in it."""
    rounds = sorted({number for curve in curves for number in curve})
    finite = {
        number: [scale * curve[number] for curve in curves if math.isfinite(curve.get(number, math.nan))]
        for number in rounds
    }
    shown = {number: values for number, values in finite.items() if values}
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
        alpha=SHADE,
        linewidth=0,
    )


def canvas(size: tuple[float, float], title: str) -> Figure:
    """An empty figure of so many inches with a line above it."""
    figure = Picture(size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", wrap=True, fontsize=FONT + 2, color=INK)
    return figure


def line(index: int, rounds: Sequence[int], values: Sequence[float], label: str = "") -> Line2D:
    """A line in style number `index`, with a few markers apart from its neighbours'."""
    step = max(math.ceil(len(rounds) / MARKERS_PER_LINE), 1)
    return Line2D(
        rounds,
        values,
        color=COLOURS[index % len(COLOURS)],
        linestyle=DASHES[index % len(DASHES)],
        linewidth=1.4,
        marker=MARKERS[index % len(MARKERS)],
        markersize=4,
        markevery=(index % step, step),
        label=label,
    )


def within_bounds(metric: Metric, bottom: float, top: float) -> tuple[float, float]:
    """Limits of an axis: a marker at 0 % or 100 % fits, senseless ticks do not."""
    low, high = metric.bounds
    return max(bottom, low - 2), min(top, high + 2)


def style(axes: Axes, last: int, missing: str) -> None:
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
            0.5,
            0.5,
            f"no {missing} recorded",
            transform=axes.transAxes,
            ha="center",
            fontsize=FONT,
            color=INK,
        )


def add_legend(
    axes: Axes, place: Literal["upper left", "lower left"], title: str, handles: Sequence[Line2D | Patch]
) -> None:
    """A legend beside panels, in axes that may hold another one."""
    legend = Legend(
        axes,
        handles,
        [str(handle.get_label()) for handle in handles],
        loc=place,
        title=title,
        title_fontsize=FONT,
        fontsize=FONT - 1,
        labelcolor=INK,
        frameon=False,
        handlelength=3,
        alignment="left",
        borderaxespad=0,
    )
    legend.get_title().set_color(INK)
    axes.add_artist(legend)


def frame(axes: Axes, last: int, title: str, quantity: str, missing: str) -> None:
    """The style of a panel, with a title and the name of what is on the y axis."""
    style(axes, last, missing)
    axes.set_title(folded(title, 40), fontsize=FONT, color=INK, loc="left")
    axes.set_ylabel(quantity, fontsize=FONT, color=INK)


def folded(label: str, width: int) -> str:
    """A label in lines of at most so many letters."""
    return textwrap.fill(label, width)


def logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic scale for such values, with ticks that can be read also within one power of ten.

    Some of them, though not all, may be zero, which then has a place below all others.
    """
    positive = [value for value in values if value > 0]
    ticks = _ticks(min(positive), max(positive))
    low, high = min(*positive, ticks[0]), max(*positive, ticks[-1])
    if len(positive) == len(values):
        axes.set_yscale("log")
        axes.set_ylim(0.85 * low, high / 0.85)
    else:
        # So much of the height that the zero's label is clear of the next.
        axes.set_yscale("symlog", linthresh=low, linscale=0.15 * math.log10(high / low))
        axes.set_ylim(-0.3 * low, high / 0.85)
        ticks = [0.0, *ticks]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)


def _ticks(low: float, high: float) -> list[float]:
    """Up to seven round numbers between two positive ones, or around them if there are none.

    >>> _ticks(0.3, 4), _ticks(0.7, 0.8), _ticks(2e-7, 30)
    ([0.5, 1.0, 2.0], [0.5, 1.0], [1e-06, 0.0001, 0.01, 1.0])
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) > 7:
        inside = [tick for tick in ticks[::3] if low <= tick <= high]
        return inside[:: math.ceil(len(inside) / 7)]
    if len(inside) > 1:
        return inside
    return [max(tick for tick in ticks if tick < low), *inside, min(tick for tick in ticks if tick > high)]
