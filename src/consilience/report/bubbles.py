"""The class-by-client bubble plot: how many rows of each class each client holds, at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from consilience.errors import UserError
from consilience.report.saving import save

BUBBLE, INK, GRID = "#3b6fb6", "#333333", "#e9e9e9"
POINTS_PER_INCH = 72
FONT = 9  # points


def bubble_plot(
    counts: npt.NDArray[np.integer],
    path: Path,
    title: str = "",
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> None:
    """Draw who holds how much of which class into an image file.

    Args:
        counts: rows of each class at each client [clients, classes].
        path: where to write; its ending chooses the format.
        title: a line above the plot.
        class_names: one for each class; their numbers if not given.
        client_names: one for each client; their numbers if not given.
    """
    save(bubble_figure(counts, title, class_names, client_names), path)


def bubble_figure(
    counts: npt.NDArray[np.integer],
    title: str = "",
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> Figure:
    """The figure of `bubble_plot`: areas proportional to counts, neighbours apart.

    More than 100 clients continue in a further panel below, as long as six panels are enough.
    """
    if counts.ndim != 2 or 0 in counts.shape:
        raise UserError(f"a bubble plot needs counts of shape [clients, classes], not {list(counts.shape)}")
    clients, classes = counts.shape
    names = [str(number) for number in range(classes)] if class_names is None else list(class_names)
    if len(names) != classes:
        raise UserError(f"{len(names)} class names for {classes} classes; give one for each")

    panels = min(math.ceil(clients / 100), 6)
    per_panel = math.ceil(clients / panels)
    # All lengths in inches. Cells shrink with their number, down to what can still be told apart.
    column = max(min(13 / per_panel, 0.36), 1.5 / per_panel)
    row = max(min(max(9 / classes, 0.1), max(min(column, 0.3), 0.17)), 1.4 / classes)
    left, right = 0.42 + 0.07 * max(map(len, names)), 1.2
    longest = 0.065 * max(map(len, client_names), default=0)  # names stand upright
    bottom, top, gap = 0.45 + longest, 0.42 if title else 0.15, 0.32 + longest
    panel_width, panel_height = column * per_panel, row * classes
    width = left + panel_width + right
    height = bottom + panels * panel_height + (panels - 1) * gap + top

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    largest = max(int(counts.max()), 1)
    diameter = 0.94 * min(column, row, 0.36) * POINTS_PER_INCH
    for panel in range(panels):
        lower = bottom + (panels - 1 - panel) * (panel_height + gap)
        axes = figure.add_axes((left / width, lower / height, panel_width / width, panel_height / height))
        axes.set_xlim(panel * per_panel - 0.5, (panel + 1) * per_panel - 0.5)
        axes.set_ylim(-0.5, classes - 0.5)
        _style(axes)
        step = _tick_step(0.3 / column)
        first = math.ceil(panel * per_panel / step) * step
        ticks = range(first, min((panel + 1) * per_panel, clients), step)
        axes.set_xticks(ticks)
        if client_names:
            axes.set_xticklabels([client_names[tick] for tick in ticks], rotation=90)
        step = _tick_step(0.15 / row)
        axes.set_yticks(range(0, classes, step), names[::step])
        client, label = np.nonzero(counts[panel * per_panel : (panel + 1) * per_panel])
        client += panel * per_panel
        areas = diameter**2 * counts[client, label] / largest
        axes.scatter(client, label, s=areas, color=BUBBLE, linewidths=0, zorder=2)
    figure.axes[-1].set_xlabel("client", fontsize=FONT, color=INK)
    figure.axes[0].set_title(title, fontsize=FONT + 2, color=INK, loc="left", pad=9)
    _legend(figure.axes[0], largest, diameter)
    return figure


def _style(axes: Axes) -> None:
    """A light grid, no frame, quiet labels."""
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK, pad=5)
    axes.set_ylabel("class", fontsize=FONT, color=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _legend(axes: Axes, largest: int, diameter: float) -> None:
    """Reference bubbles to the right; `diameter` in points is that of the largest count."""
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=diameter * math.sqrt(count / largest),
            markeredgewidth=0,
            color=BUBBLE,
            label=f"{count:,}",
        )
        for count in _references(largest)
    ]
    legend = axes.legend(
        handles=handles,
        title="rows",
        title_fontsize=FONT,
        fontsize=FONT - 1,
        labelcolor=INK,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
        # In units of the font size: reference bubbles must not touch each other or the title either.
        labelspacing=0.4 + 0.7 * diameter / FONT,
        alignment="left",
    )
    legend.get_title().set_color(INK)


def _tick_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is not below `least`.

    >>> [_tick_step(least) for least in (0.2, 1, 1.5, 3, 7, 12)]
    [1, 1, 2, 5, 10, 20]
    """
    power: int = 10 ** math.floor(math.log10(max(least, 1)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least)


def _references(largest: int) -> list[int]:
    """Up to three round counts for the legend: near the largest, a quarter and a sixteenth of it.

    >>> _references(6742), _references(30), _references(1)
    ([6000, 1000, 400], [30, 7, 1], [1])
    """
    return sorted(
        {_round_down(count) for count in (largest, largest // 4, largest // 16) if count}, reverse=True
    )


def _round_down(count: int) -> int:
    """The largest number of one significant digit that is not above a count."""
    power: int = 10 ** (len(str(count)) - 1)
    return count // power * power
