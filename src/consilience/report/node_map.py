"""The nodes of a graph of peers on a map: how good each of them is at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from consilience.problems import Metric
from consilience.report.bubbles import FONT, INK, POINTS_PER_INCH
from consilience.report.graphs import EDGE, layout, write_names
from consilience.report.node_records import Floats, Peers, final_scores, least_apart, methods_by_setting
from consilience.report.plots import COLUMNS, canvas, folded
from consilience.report.saving import save
from consilience.report.summary import Record

MAPPED = 400
"""The most nodes that a map has room for; finding places for more would take minutes."""

WORST_TO_BEST = "YlGnBu"
"""Colours, light to dark."""

LUMINANCE = (0.2126, 0.7152, 0.0722)
"""How bright red, green and blue look."""
BRIGHT = 0.56
"""A colour that is at least so bright carries dark letters."""


def map_plot(
    records: Sequence[Record], peers: Mapping[str, Peers], metric: Metric, path: Path, title: str
) -> None:
    """Draw the final score of every node, at its place in the graph, into a file.

    Args:
        records: as in a metrics file.
        peers: by setting; those that are not named are left out.
        metric: the score.
        path: where to write; its ending chooses the format.
        title: a line above the plot.
    """
    save(map_figure(records, peers, metric, title), path)


def map_figure(records: Sequence[Record], peers: Mapping[str, Peers], metric: Metric, title: str) -> Figure:
    """The figure of `map_plot`: a panel for each method of each setting, all with the same colours.

    Scores are those of the last evaluation in the seed of `peers`; better is darker, and nodes without one
    stay white.
    """
    settings = methods_by_setting(records, peers)
    most = max(len(peers[setting].sizes) for setting in settings)
    side = float(np.clip(0.5 * most**0.5, 3, 7))  # this and all lengths in inches
    columns = max(min(len(methods), COLUMNS) for methods in settings.values())
    rows = {setting: math.ceil(len(methods) / columns) for setting, methods in settings.items()}
    finals = {
        (setting, label): final_scores(
            method.runs.get(peers[setting].seed, {}), len(peers[setting].sizes), metric.name
        )
        for setting, methods in settings.items()
        for label, method in methods.items()
    }
    colours = _colours(metric.scale * np.concatenate(list(finals.values())), metric)

    size = (side * columns + 0.9, (side + 0.3) * sum(rows.values()) + 0.4)
    figure = canvas(size, title)
    grid = figure.add_gridspec(sum(rows.values()), columns)
    first, panels = 0, []
    for setting, methods in settings.items():
        places = layout(peers[setting].adjacency)
        for place, label in enumerate(methods):
            axes = figure.add_subplot(grid[first + place // columns, place % columns])
            final = finals[setting, label]
            _draw_map(axes, peers[setting], places, metric.scale * final, colours, side)
            known = final[np.isfinite(final)]
            name = f"{setting}, {label}" if len(settings) > 1 else label
            mean = metric.shown_with_unit(known.mean()) if len(known) else None
            note = f"no {metric.name} recorded" if mean is None else f"mean {mean}"
            axes.set_title(folded(f"{name}, {note}", int(side / 0.08)), fontsize=FONT, color=INK, loc="left")
            panels.append(axes)
        first += rows[setting]
    bar = figure.colorbar(colours, ax=panels, shrink=min(1, 4 / size[1]), aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    seeds = sorted({peers[setting].seed for setting in settings})
    which = f"seed {seeds[0]}" if len(seeds) == 1 else "one seed each"
    bar.set_label(f"final {metric.axis}, {which}", fontsize=FONT, color=INK)
    return figure


def _colours(scores: Floats, metric: Metric) -> ScalarMappable:
    """Colours for scores as they are shown: from the worst to the best, where these are apart at all."""
    known = scores[np.isfinite(scores)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, metric.scale)
    apart = max(least_apart(metric, low, high) - (high - low), 0) / 2
    colours = colormaps[WORST_TO_BEST] if metric.higher_is_better else colormaps[WORST_TO_BEST].reversed()
    return ScalarMappable(Normalize(low - apart, high + apart), colours.with_extremes(bad="white"))


def _draw_map(
    axes: Axes, peers: Peers, places: Floats, final: Floats, colours: ScalarMappable, side: float
) -> None:
    """One graph, in a panel whose side is about so many inches."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    low, high = places.min(0), places.max(0)
    extent = float((high - low).max()) + 1
    x, y = (low + high) / 2
    axes.set_xlim(x - extent / 2, x + extent / 2)
    axes.set_ylim(y - extent / 2, y + extent / 2)
    ends = np.argwhere(np.triu(peers.adjacency))
    thickness = float(np.clip(200 / max(len(ends), 1), 0.25, 0.8))
    axes.add_collection(LineCollection(list(places[ends]), colors=EDGE, linewidths=thickness, zorder=1))
    diameter = min(0.4 * side * POINTS_PER_INCH / extent, 22)
    nodes = axes.scatter(
        places[:, 0],
        places[:, 1],
        s=diameter**2,
        c=final,
        plotnonfinite=True,
        edgecolors=INK,
        linewidths=0.4,
        zorder=2,
    )
    nodes.set(cmap=colours.cmap, norm=colours.norm)
    font = min(diameter / (len(str(len(final) - 1)) + 0.6), FONT - 1)
    bright = colours.to_rgba(final)[:, :3] @ LUMINANCE
    write_names(axes, places, peers.names, diameter)
    for node, (x, y) in enumerate(() if peers.names else places):
        axes.text(
            x,
            y,
            str(node),
            fontsize=font,
            color=INK if bright[node] > BRIGHT else "white",
            ha="center",
            va="center_baseline",
            zorder=3,
        )
