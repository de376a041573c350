"""A sweep: the final score over the number that was swept, or a heat map over two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from consilience.errors import UserError
from consilience.problems import Metric
from consilience.report.bubbles import FONT, GRID, INK
from consilience.report.choosing import CURVES
from consilience.report.plots import COLOURS, SHADE, band_handles, canvas, folded, line, within_bounds
from consilience.report.saving import save
from consilience.report.summary import MethodSummary
from consilience.sweeping import ANY

BESTS = "best"
"""What the mark of the best variant is called."""
FAR_APART = 20
"""Numbers whose largest is so many times their smallest are on a logarithmic scale."""
ACROSS = 3
"""The most panels side by side."""
WORDS = 14
"""The most values of a number for which cells of a heat map have their score written in them."""
LINES, MAP = (5.6, 3.3), 1.2  # inches: the size of a panel with lines, and what surrounds the cells of a map

Block = Figure | SubFigure
Panel = tuple[float, float, Callable[[Block], None]]
"""The width and height of a panel, and what draws it."""


@dataclass(frozen=True)
class _Family:
    """The variants of one method in one setting, or in settings that differ in swept numbers."""

    label: str
    rows: Sequence[MethodSummary]

    @property
    def keys(self) -> list[str]:
        """The numbers that differ, those with most values first."""
        names = dict.fromkeys(name for row in self.rows for name in row.swept)
        counts = {name: len(self.values(name)) for name in names}
        return sorted((name for name in names if counts[name] > 1), key=lambda name: -counts[name])

    def values(self, key: str) -> list[float]:
        """The values of a number, ascending."""
        found = {row.swept.get(key) for row in self.rows}
        return sorted(cast(float, value) for value in found if value not in (None, ANY))

    def best(self, metric: Metric) -> list[MethodSummary]:
        """The best variant of each setting that has several: settings themselves are not better or worse."""
        settings: dict[str, list[MethodSummary]] = {}
        for row in self.rows:
            settings.setdefault(row.setting, []).append(row)
        return [found for rows in settings.values() if len(rows) > 1 and (found := _best(rows, metric))]


def _best(rows: Sequence[MethodSummary], metric: Metric) -> MethodSummary | None:
    """The best of some variants; None where all have diverged."""
    best = metric.best(row.final_mean for row in rows if row.final_mean is not None)
    return next((row for row in rows if row.final_mean == best), None)


def is_sweep(summaries: Sequence[MethodSummary]) -> bool:
    """Whether there is a sweep to draw: some method with several values of some number."""
    return any(family.keys for family in _families(summaries))


def sweep_plot(summaries: Sequence[MethodSummary], metric: Metric, path: Path, title: str) -> None:
    """Draw a sweep into a file; its ending chooses the format.

    Args:
        summaries: of all variants.
        metric: the score that the summaries were made with.
        path: where to write.
        title: a line above the plot.
    """
    save(sweep_figure(summaries, metric, title), path)


def sweep_figure(summaries: Sequence[MethodSummary], metric: Metric, title: str) -> Figure:
    """The figure of `sweep_plot`, in which the best variant of each method is marked.

    Methods of which one number was swept are lines, at most eight a panel; those that do not use it are
    level. A method of which two were swept is a heat map; of more, its cells are the best over the others.
    """
    families = _families(summaries)
    keys = list(dict.fromkeys(key for family in families for key in family.keys))
    if not keys:
        raise UserError(
            "no sweep to plot; give a list for some number, e.g. method={name: fedprox, mu: [0.1, 1]}"
        )
    panels: list[Panel] = []
    for key in keys:
        over = [family for family in families if family.keys == [key]]
        level = [family for family in families if not family.keys and key in family.rows[0].swept]
        drawn = [*over, *level] if over else []
        for start in range(0, len(drawn), CURVES):
            some = drawn[start : start + CURVES]
            panels.append((*LINES, partial(_draw_lines, key=key, families=some, metric=metric)))
    maps = [family for family in families if len(family.keys) > 1]
    flat = [row.final_mean for family in maps for row in family.rows if row.final_mean is not None]
    scale = (metric.scale * min(flat, default=0.0), metric.scale * max(flat, default=1.0))
    for family in maps:
        panels.append((*_map_size(family), partial(_draw_map, family=family, metric=metric, scale=scale)))
    return _arranged(panels, title)


def _families(summaries: Sequence[MethodSummary]) -> list[_Family]:
    found: dict[tuple[str, str], list[MethodSummary]] = {}
    for summary in summaries:
        found.setdefault(summary.base, []).append(summary)
    several = len({setting for setting, _ in found}) > 1
    return [
        _Family(f"{setting}: {method}" if several else method, rows)
        for (setting, method), rows in found.items()
    ]


def _arranged(panels: Sequence[Panel], title: str) -> Figure:
    """The panels in rows, each as wide and high as it needs to be."""
    across = math.ceil(len(panels) / math.ceil(len(panels) / ACROSS))  # four panels are two above two
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    widths = [sum(width for width, _, _ in row) for row in rows]
    heights = [max(height for _, height, _ in row) for row in rows]
    figure = canvas((max(widths), 0.35 + sum(heights)), title)
    levels = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for level, row, width in zip(levels, rows, widths, strict=True):
        rest = max(widths) - width  # empty, so that all panels keep their size
        ratios = [one[0] for one in row] + ([rest] if rest > 0 else [])
        parts = level.subfigures(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
        for part, (_, _, draw) in zip(parts, row, strict=False):
            draw(part)
    return figure


def _draw_lines(part: Block, *, key: str, families: Sequence[_Family], metric: Metric) -> None:
    """Scores over one number, a line for each method, in bands of ± one standard deviation over seeds."""
    axes = part.subplots()
    values = sorted({value for family in families for value in family.values(key)})
    places = _scale(axes, values, key)
    handles = []
    marked = False
    axes.set_xlim(*_room(values, logarithmic=axes.get_xscale() == "log"))
    for index, family in enumerate(families):
        marked |= _draw_line(axes, index, family, key, places, metric)
        handles.append(line(index, [], [], folded(family.label, 26)))
        handles[-1].set_marker("" if not family.keys else handles[-1].get_marker())
    best = [Line2D([], [], linestyle="", marker="*", markersize=11, color=INK, label=BESTS)] if marked else []
    if any(row.final_mean is None for family in families for row in family.rows):
        best.append(Line2D([], [], linestyle="", marker="x", color=INK, label="diverged"))
    seeds = {row.seeds for family in families for row in family.rows}
    part.legend(
        handles=[*handles, *best, *band_handles(seeds)],
        loc="outside right center",
        fontsize=FONT - 1,
        labelcolor=INK,
        frameon=False,
        handlelength=3,
    )
    axes.set_ylabel(f"final {metric.axis}", fontsize=FONT, color=INK)
    found = any(row.final_mean is not None for family in families for row in family.rows)
    axes.set_ylim(within_bounds(metric, *axes.get_ylim()) if found else (0, metric.scale))
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _draw_line(
    axes: Axes, index: int, family: _Family, key: str, places: Mapping[float, float], metric: Metric
) -> bool:
    """One method; whether a best variant was marked."""
    level = not family.keys
    found = {
        place: row
        for row in family.rows
        for place in (places.values() if level else [places[cast(float, row.swept[key])]])
        if row.final_mean is not None
    }
    shown = dict(sorted(found.items()))
    for row in family.rows:
        if row.final_mean is None and not level:  # it has no place on the scale, so it stands below
            at, colour = places[cast(float, row.swept[key])], COLOURS[index % len(COLOURS)]
            axes.plot(at, 0.03, "x", transform=axes.get_xaxis_transform(), color=colour, scaley=False)
    means = [metric.scale * cast(float, row.final_mean) for row in shown.values()]
    spreads = [metric.scale * (row.final_std or 0.0) for row in shown.values()]
    if not shown:
        return False
    drawn = line(index, cast("list[int]", list(shown)), means)
    drawn.set_markevery(1)
    if level:
        drawn.set_marker("")
    axes.add_line(drawn)
    axes.fill_between(
        list(shown),
        [mean - spread for mean, spread in zip(means, spreads, strict=True)],
        [mean + spread for mean, spread in zip(means, spreads, strict=True)],
        color=COLOURS[index % len(COLOURS)],
        alpha=SHADE,
        linewidth=0,
    )
    best = [place for place, row in shown.items() if not level and row in family.best(metric)]
    for place in best:
        axes.plot(
            place,
            metric.scale * cast(float, shown[place].final_mean),
            marker="*",
            markersize=15,
            color=COLOURS[index % len(COLOURS)],
            markeredgecolor="white",
            zorder=5,
        )
    return bool(best)


def _scale(axes: Axes, values: Sequence[float], key: str) -> dict[float, float]:
    """Where each value stands on the x axis, which says all of them where they do not crowd."""
    axes.set_xlabel(key, fontsize=FONT, color=INK)
    if values[0] > 0 and values[-1] >= FAR_APART * values[0]:
        axes.set_xscale("log")
        widths = np.diff(np.log10(values)) / math.log10(values[-1] / values[0])
    else:
        widths = np.diff(values) / (values[-1] - values[0])
    if widths.min() > 0.035:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)
    return {value: value for value in values}


def _room(values: Sequence[float], *, logarithmic: bool) -> tuple[float, float]:
    """The limits of an axis with a little room beside the first and the last value."""
    low, high = values[0], values[-1]
    if logarithmic:
        return low * (high / low) ** -0.06, high * (high / low) ** 0.06
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


def _map_size(family: _Family) -> tuple[float, float]:
    """The width and height of a heat map with what surrounds it."""
    x, y = (len(family.values(key)) for key in family.keys[:2])
    wide, high = (0.62, 0.42) if max(x, y) <= WORDS else (0.24, 0.24)
    return max(3.4, MAP + wide * x), max(2.2, MAP + high * y)


def _draw_map(part: Block, *, family: _Family, metric: Metric, scale: tuple[float, float]) -> None:
    """One method over two numbers; dark is good, a frame is the best, a dash has diverged."""
    axes = part.subplots()
    x, y, *others = family.keys
    columns, rows = family.values(x), family.values(y)
    cells = {
        (i, j): [row for row in family.rows if (row.swept[x], row.swept[y]) == (column, value)]
        for i, column in enumerate(columns)
        for j, value in enumerate(rows)
    }
    chosen = {place: _best(found, metric) for place, found in cells.items()}
    scores = np.full((len(rows), len(columns)), np.nan)
    for (i, j), row in chosen.items():
        if row is not None and row.final_mean is not None:
            scores[j, i] = metric.scale * row.final_mean
    colours = colormaps["YlGnBu" if metric.higher_is_better else "YlGnBu_r"].with_extremes(bad="#e4e4e4")
    image = axes.imshow(scores, cmap=colours, aspect="auto", origin="lower", vmin=scale[0], vmax=scale[1])
    inks = image.to_rgba(np.nan_to_num(scores, nan=scale[0]))
    if max(len(columns), len(rows)) <= WORDS:
        for (i, j), row in chosen.items():
            score = None if row is None else row.final_mean
            _write(axes, i, j, score, metric, (1.0, 1.0, 1.0) if score is None else inks[j, i].tolist())
    else:
        bar = part.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
        bar.ax.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
        bar.outline.set_visible(False)
    bests = family.best(metric)
    framed = f"frame: {BESTS}" if len(bests) < 2 else f"frames: {BESTS} of each setting"
    framed = framed.replace(" ", "\N{NO-BREAK SPACE}")
    for best in bests:
        for (i, j), row in chosen.items():
            if row is best:
                axes.add_patch(
                    Rectangle(
                        (i - 0.5, j - 0.5),
                        1,
                        1,
                        fill=False,
                        clip_on=False,
                        edgecolor="#D55E00",
                        linewidth=2.2,
                    )
                )
    for name, values, axis in ((x, columns, axes.xaxis), (y, rows, axes.yaxis)):
        step = math.ceil(len(values) / WORDS)
        axis.set_ticks(range(0, len(values), step), [f"{value:g}" for value in values[::step]])
        axis.set_label_text(name, fontsize=FONT, color=INK)
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    axes.spines[:].set_visible(False)
    note = f", best over {' and '.join(others)}" if others else ""
    said = [folded(family.label, 44), folded(f"final {metric.axis}{note}; {framed}", 50)]
    axes.set_title("\n".join(said), fontsize=FONT, color=INK, loc="left")


def _write(
    axes: Axes,
    i: int,
    j: int,
    score: float | None,
    metric: Metric,
    colour: Sequence[float],
) -> None:
    """A score in its cell, in ink that is read on the cell's colour."""
    red, green, blue, *_ = colour
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
    text = "–" if score is None else f"{metric.scale * score:.1f}" if metric.percent else metric.shown(score)
    axes.text(i, j, text, ha="center", va="center", fontsize=FONT - 1, color=INK if light else "white")
