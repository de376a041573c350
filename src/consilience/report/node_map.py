"""The nodes of a graph of peers on a map: how accurate each of them is at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from consilience.graphs.base import Adjacency
from consilience.report.bubbles import FONT, INK, POINTS_PER_INCH
from consilience.report.graphs import EDGE, layout
from consilience.report.node_records import Floats, Peers, final_accuracies, methods_by_setting
from consilience.report.plots import COLUMNS, canvas, folded, save
from consilience.report.summary import Record

MAPPED = 400
"""The most nodes that a map has room for; finding places for more would take minutes."""

WORST_TO_BEST = "YlGnBu"


def map_plot(records: Sequence[Record], peers: Mapping[str, Peers], path: Path, title: str) -> None:
    """Draw the final accuracy of every node, at its place in the graph, into a PNG file.

    Args:
        records: as in a metrics file.
        peers: by setting; those that are not named are left out.
        path: where to write.
        title: a line above the plot.
    """
    save(map_figure(records, peers, title), path)


def map_figure(records: Sequence[Record], peers: Mapping[str, Peers], title: str) -> Figure:
    """The figure of `map_plot`: a panel for each method of each setting, all with the same colours.

    Accuracies are those of the last evaluation in the seed of `peers`; nodes without one stay white.
    """
    settings = methods_by_setting(records, peers)
    most = max(len(peers[setting].sizes) for setting in settings)
    side = float(np.clip(0.5 * most**0.5, 3, 7))  # this and all lengths in inches
    columns = max(min(len(methods), COLUMNS) for methods in settings.values())
    rows = {setting: math.ceil(len(methods) / columns) for setting, methods in settings.items()}
    finals = {
        (setting, label): 100
        * final_accuracies(method.runs.get(peers[setting].seed, {}), len(peers[setting].sizes))
        for setting, methods in settings.items()
        for label, method in methods.items()
    }
    colours = _range(np.concatenate(list(finals.values())))

    size = (side * columns + 0.9, (side + 0.3) * sum(rows.values()) + 0.4)
    figure = canvas(size, title)
    grid = figure.add_gridspec(sum(rows.values()), columns)
    first, panels = 0, []
    for setting, methods in settings.items():
        places = layout(peers[setting].adjacency)
        for place, label in enumerate(methods):
            axes = figure.add_subplot(grid[first + place // columns, place % columns])
            final = finals[setting, label]
            shown = _draw_map(axes, peers[setting].adjacency, places, final, colours, side)
            known = final[np.isfinite(final)]
            name = f"{setting}, {label}" if len(settings) > 1 else label
            mean = f"mean {known.mean():.1f} %" if len(known) else "no accuracy recorded"
            axes.set_title(folded(f"{name}, {mean}", int(side / 0.08)), fontsize=FONT, color=INK, loc="left")
            panels.append(axes)
        first += rows[setting]
    bar = figure.colorbar(shown, ax=panels, shrink=min(1, 4 / size[1]), aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    seeds = sorted({peers[setting].seed for setting in settings})
    which = f"seed {seeds[0]}" if len(seeds) == 1 else "one seed each"
    bar.set_label(f"final test accuracy (%), {which}", fontsize=FONT, color=INK)
    return figure


def _range(accuracies: Floats) -> Normalize:
    """Colours for accuracies: from the worst to the best, and at least one percent apart."""
    known = accuracies[np.isfinite(accuracies)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 100.0)
    apart = max(1 - (high - low), 0) / 2
    return Normalize(low - apart, high + apart)


def _draw_map(
    axes: Axes, adjacency: Adjacency, places: Floats, final: Floats, colours: Normalize, side: float
) -> PathCollection:
    """One graph, in a panel whose side is about so many inches."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    low, high = places.min(0), places.max(0)
    extent = float((high - low).max()) + 1
    x, y = (low + high) / 2
    axes.set_xlim(x - extent / 2, x + extent / 2)
    axes.set_ylim(y - extent / 2, y + extent / 2)
    ends = np.argwhere(np.triu(adjacency))
    thickness = float(np.clip(200 / max(len(ends), 1), 0.25, 0.8))
    axes.add_collection(LineCollection(list(places[ends]), colors=EDGE, linewidths=thickness, zorder=1))
    diameter = min(0.4 * side * POINTS_PER_INCH / extent, 22)
    shown = axes.scatter(
        places[:, 0],
        places[:, 1],
        s=diameter**2,
        c=final,
        cmap=colormaps[WORST_TO_BEST].with_extremes(bad="white"),
        norm=colours,
        plotnonfinite=True,
        edgecolors=INK,
        linewidths=0.4,
        zorder=2,
    )
    font = min(diameter / (len(str(len(final) - 1)) + 0.6), FONT - 1)
    for node, (x, y) in enumerate(places):
        axes.text(
            x,
            y,
            str(node),
            fontsize=font,
            color="white" if np.isfinite(final[node]) and colours(final[node]) > 0.55 else INK,
            ha="center",
            va="center_baseline",
            zorder=3,
        )
    return shown
