"""The nodes of a graph of peers: how far apart they are over rounds, and on a map at the end."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from consilience.errors import UserError
from consilience.report.bubbles import FONT, INK, POINTS_PER_INCH
from consilience.report.graphs import EDGE, layout
from consilience.report.plots import COLOURS, line, style
from consilience.report.summary import Record, runs_by_method
from consilience.topology import Adjacency

Floats = npt.NDArray[np.float64]
Runs = Mapping[int, Mapping[int, Record]]
"""Of a method in a setting: by seed and round."""

Curve = Mapping[int, float]
"""By round."""

COLUMNS = 4
"""Panels side by side."""

SHOWN = 6
"""Nodes whose curvature is drawn, unless others are asked for."""

MAPPED = 400
"""The most nodes that a map has room for; finding places for more would take minutes."""

WORST_TO_BEST = "YlGnBu"
LIGHT, DARK = 0.13, 0.25
BRIEF = 24  # letters in a line of a legend
BESIDE, LINE = 2.3, 0.175  # inches: the width of legends, and the height of a line in them


@dataclass(frozen=True)
class Peers:
    """The graph of a setting in the seed that is shown where only one can be."""

    seed: int
    adjacency: Adjacency
    """[nodes, nodes] who hears whom."""
    sizes: tuple[int, ...]
    """How many rows of data each node holds."""


def settings_with_nodes(records: Iterable[Record]) -> list[str]:
    """Settings in which something is recorded about single nodes, as first seen."""
    return list(dict.fromkeys(str(record["setting"]) for record in records if record.get("nodes")))


def nodes_plot(
    records: Sequence[Record],
    peers: Mapping[str, Peers],
    path: Path,
    title: str,
    nodes: Sequence[int] | None = None,
) -> None:
    """Draw accuracy, curvature and consensus of nodes over rounds into a PNG file.

    Args:
        records: as in a metrics file; rounds without lists over nodes are skipped, and so are nulls in them.
        peers: by setting; those that are not named are left out.
        path: where to write.
        title: a line above the plot.
        nodes: whose curvature to draw; by default up to six that hold least, medium and most data.
    """
    _save(nodes_figure(records, peers, title, nodes), path)


def map_plot(records: Sequence[Record], peers: Mapping[str, Peers], path: Path, title: str) -> None:
    """Draw the final accuracy of every node, at its place in the graph, into a PNG file.

    Args:
        records: as in a metrics file.
        peers: by setting; those that are not named are left out.
        path: where to write.
        title: a line above the plot.
    """
    _save(map_figure(records, peers, title), path)


def _save(figure: Figure, path: Path) -> None:
    # Without the version of the drawing library the same records always give the same file.
    figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


def nodes_figure(
    records: Sequence[Record],
    peers: Mapping[str, Peers],
    title: str,
    nodes: Sequence[int] | None = None,
) -> Figure:
    """The figure of `nodes_plot`, a block of panels for each setting.

    Accuracy: a panel for each method, the mean over nodes and seeds in a band of ± one standard deviation,
    within a lighter one from the worst to the best node; dashed, the mean after local training.
    Curvature: a panel for each method that sends it, lines for some nodes, of one seed.
    Consensus: the distance from the mean model, the mean over nodes and seeds; a line for each method.
    """
    blocks = [
        _block(setting, methods, peers[setting], _chosen(peers[setting], nodes))
        for setting, methods in _settings(records, peers).items()
    ]
    columns = max(min(len(block.methods), COLUMNS) for block in blocks)
    panel = 3.4 if columns > 2 else 4.4  # this and all lengths in inches
    heights = [sum(block.heights(columns)) for block in blocks]
    size = (panel * columns + BESIDE, 0.4 + sum(heights))
    figure = Figure(size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", wrap=True, fontsize=FONT + 2, color=INK)
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, block in zip(parts, blocks, strict=True):
        if len(blocks) > 1:
            part.suptitle(block.setting, x=0.01, ha="left", fontsize=FONT + 1, color=INK)
        _draw_block(part, block, columns, [panel] * columns + [BESIDE])
    return figure


@dataclass(frozen=True)
class _Method:
    """A method in a setting."""

    index: int
    """Of its look, the same as in the plot of accuracies."""
    runs: Runs


@dataclass(frozen=True)
class _Block:
    """What is drawn of a setting."""

    setting: str
    methods: Mapping[str, _Method]
    curvatures: Mapping[str, Sequence[Curve]]
    """By method that has any: of each chosen node."""
    nodes: Sequence[str]
    """What the chosen ones are called."""
    distances: Mapping[str, Curve]
    """By method that has any: from consensus."""
    seed: int

    def rows(self, columns: int) -> tuple[int, int]:
        """Of accuracies, and of all else."""
        others = len(self.curvatures) + bool(self.distances)
        return math.ceil(len(self.methods) / columns), math.ceil(others / columns)

    def heights(self, columns: int) -> list[float]:
        """By row: room for panels, and for the legends beside them."""
        first, others = self.rows(columns)
        lines = sum(_folded(label, BRIEF).count("\n") + 1 for label in self.distances) + 2
        lines += len(self.nodes) + 2 if self.curvatures else 0
        return [2.6] * first + [max(2.6, (0.8 + LINE * lines) / max(others, 1))] * others


def _block(setting: str, methods: Mapping[str, _Method], peers: Peers, chosen: Sequence[int]) -> _Block:
    curvatures = {
        label: [_curve(method.runs.get(peers.seed, {}), "curvature", node) for node in chosen]
        for label, method in methods.items()
    }
    distances = {
        label: {number: float(values.mean()) for number, values in _pooled(method.runs, "consensus").items()}
        for label, method in methods.items()
    }
    # Nodes that agree have no place on a logarithmic scale.
    apart = {
        label: {n: value for n, value in curve.items() if value > 0} for label, curve in distances.items()
    }
    return _Block(
        setting=setting,
        methods=methods,
        curvatures={label: curves for label, curves in curvatures.items() if any(curves)},
        nodes=[f"node {node}, {peers.sizes[node]:,} rows" for node in chosen],
        distances={label: curve for label, curve in apart.items() if curve},
        seed=peers.seed,
    )


def _draw_block(part: SubFigure, block: _Block, columns: int, widths: Sequence[float]) -> None:
    """Accuracy in the first rows, curvature in the next; consensus takes what is left of those."""
    first, others = block.rows(columns)
    heights = block.heights(columns)
    grid = part.add_gridspec(first + others, columns + 1, width_ratios=widths, height_ratios=heights)
    last = max(max(run) for method in block.methods.values() for run in method.runs.values())

    panels = []
    for place, (label, method) in enumerate(block.methods.items()):
        axes = part.add_subplot(grid[divmod(place, columns)])
        _draw_accuracy(axes, method)
        _frame(axes, last, label, "" if place % columns else "test accuracy (%)")
        panels.append(axes)
    _share_accuracies(panels)
    beside = part.add_subplot(grid[:first, -1])
    beside.set_axis_off()
    _legend(beside, "upper left", "over nodes and seeds", _accuracy_handles(block.methods.values()))
    if not others:
        return

    beside = part.add_subplot(grid[first:, -1])
    beside.set_axis_off()
    for place, (label, curves) in enumerate(block.curvatures.items()):
        axes = part.add_subplot(grid[first + place // columns, place % columns])
        for index, curve in enumerate(curves):
            axes.add_line(line(index, list(curve), list(curve.values())))
        _frame(axes, last, label, "" if place % columns else "curvature norm")
        axes.autoscale_view(scalex=False)
    if block.curvatures:
        handles = [line(index, [], [], name) for index, name in enumerate(block.nodes)]
        _legend(beside, "upper left", f"curvature, seed {block.seed}", handles)
    if block.distances:
        row, column = divmod(len(block.curvatures), columns)
        axes = part.add_subplot(grid[first + row, column:-1])
        for label, curve in block.distances.items():
            axes.add_line(line(block.methods[label].index, list(curve), list(curve.values())))
        _frame(axes, last, "consensus", "distance from mean model")
        _logarithmic(axes, [value for curve in block.distances.values() for value in curve.values()])
        handles = [
            line(block.methods[label].index, [], [], _folded(label, BRIEF)) for label in block.distances
        ]
        _legend(beside, "lower left" if block.curvatures else "upper left", "consensus", handles)


def _draw_accuracy(axes: Axes, method: _Method) -> None:
    pooled, trained = (
        {number: 100 * values for number, values in _pooled(method.runs, key).items()}
        for key in ("accuracy", "trained_accuracy")
    )
    rounds = np.array(list(pooled), np.float64)
    worst, mean, best, spread = (
        np.array([[values.min(), values.mean(), values.max(), values.std()] for values in pooled.values()])
        .reshape(-1, 4)
        .T
    )
    if len(rounds) == 1:  # which has no width, and no band would be seen
        rounds = rounds + np.array([-0.05, 0.05])
    for low, high, alpha in ((worst, best, LIGHT), (mean - spread, mean + spread, DARK)):
        axes.fill_between(
            rounds, low, high, color=COLOURS[method.index % len(COLOURS)], alpha=alpha, linewidth=0
        )
    for curve, is_trained in ((trained, True), (pooled, False)):
        if curve:
            drawn = line(method.index, list(curve), [float(values.mean()) for values in curve.values()])
            axes.add_line(_mean_line(drawn, is_trained))


def _mean_line(line: Line2D, is_trained: bool) -> Line2D:
    """The line, as means are drawn: methods have panels of their own, so colours are enough for them."""
    line.set(linestyle="--" if is_trained else "-", marker="o")
    line.set_markerfacecolor("white" if is_trained else line.get_color())
    return line


def _share_accuracies(panels: Sequence[Axes]) -> None:
    """One scale for all: a marker at 0 % or 100 % fits, senseless ticks do not."""
    limits = [axes.dataLim.intervaly for axes in panels if axes.lines] or [np.array([0.0, 100.0])]
    bottom, top = float(np.min(limits)), float(np.max(limits))
    margin = max(0.05 * (top - bottom), 1)
    for axes in panels:
        axes.set_ylim(max(bottom - margin, -2), min(top + margin, 102))


def _accuracy_handles(methods: Iterable[_Method]) -> list[Line2D | Patch]:
    """What the lines and bands of all methods have in common."""
    lines = [_mean_line(Line2D([], [], color=INK, linewidth=1.4, markersize=4, label="mean"), False)]
    if any(_pooled(method.runs, "trained_accuracy") for method in methods):
        after = Line2D([], [], color=INK, linewidth=1.4, markersize=4, label="mean after\nlocal training")
        lines.append(_mean_line(after, True))
    # The darker band lies on the lighter one.
    both = 1 - (1 - LIGHT) * (1 - DARK)
    bands = [("± 1 standard deviation", both), ("worst to best node", LIGHT)]
    return [*lines, *(Patch(color=INK, alpha=alpha, linewidth=0, label=label) for label, alpha in bands)]


def _legend(
    axes: Axes, place: Literal["upper left", "lower left"], title: str, handles: Sequence[Line2D | Patch]
) -> None:
    """Beside the panels, in axes that may hold another legend."""
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


def _frame(axes: Axes, last: int, title: str, quantity: str) -> None:
    style(axes, last)
    axes.set_title(_folded(title, 40), fontsize=FONT, color=INK, loc="left")
    axes.set_ylabel(quantity, fontsize=FONT, color=INK)


def _folded(label: str, width: int) -> str:
    return textwrap.fill(label, width)


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic scale for such values, with ticks that can be read also within one power of ten."""
    ticks = _ticks(min(values), max(values))
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(0.85 * min(*values, ticks[0]), max(*values, ticks[-1]) / 0.85)


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


def map_figure(records: Sequence[Record], peers: Mapping[str, Peers], title: str) -> Figure:
    """The figure of `map_plot`: a panel for each method of each setting, all with the same colours.

    Accuracies are those of the last evaluation in the seed of `peers`; nodes without one stay white.
    """
    settings = _settings(records, peers)
    most = max(len(peers[setting].sizes) for setting in settings)
    side = float(np.clip(0.5 * most**0.5, 3, 7))  # this and all lengths in inches
    columns = max(min(len(methods), COLUMNS) for methods in settings.values())
    rows = {setting: math.ceil(len(methods) / columns) for setting, methods in settings.items()}
    finals = {
        (setting, label): 100 * _final(method.runs.get(peers[setting].seed, {}), len(peers[setting].sizes))
        for setting, methods in settings.items()
        for label, method in methods.items()
    }
    colours = _range(np.concatenate(list(finals.values())))

    size = (side * columns + 0.9, (side + 0.3) * sum(rows.values()) + 0.4)
    figure = Figure(size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", wrap=True, fontsize=FONT + 2, color=INK)
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
            axes.set_title(_folded(f"{name}, {mean}", int(side / 0.08)), fontsize=FONT, color=INK, loc="left")
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


def _settings(records: Sequence[Record], peers: Mapping[str, Peers]) -> dict[str, dict[str, _Method]]:
    """By setting and label, the methods that have something to say about single nodes."""
    rows = runs_by_method(records)
    labels = list(dict.fromkeys(label for _, label in rows))
    settings: dict[str, dict[str, _Method]] = {}
    for (setting, label), runs in rows.items():
        if setting in peers and any(record.get("nodes") for run in runs.values() for record in run.values()):
            settings.setdefault(setting, {})[label] = _Method(labels.index(label), runs)
    if not settings:
        raise UserError(
            "no metrics records with lists over nodes to plot; run on a graph with evaluate.nodes"
        )
    return settings


def _chosen(peers: Peers, nodes: Sequence[int] | None) -> list[int]:
    """The nodes to show, in the order of their numbers."""
    count = len(peers.sizes)
    if nodes is not None:
        for node in nodes:
            if not 0 <= node < count:
                raise UserError(f"there is no node {node}: nodes are numbered from 0 to {count - 1}")
        return sorted(set(nodes))
    by_size = sorted(range(count), key=lambda node: peers.sizes[node])
    # As far apart in the order of sizes as possible, in pairs, so that one odd node is seen to be odd.
    third, middle = SHOWN // 3, (count - SHOWN // 3) // 2
    places = (
        range(count) if count <= SHOWN else [*range(third), *range(middle, middle + third), *range(-third, 0)]
    )
    return [by_size[place] for place in places]


def _values(record: Record, key: str) -> Floats:
    """[nodes] NaN where nothing is known; empty where the record has no such list."""
    lists = record.get("nodes") or {}
    if not isinstance(lists, Mapping):
        raise UserError(f"a metrics record has 'nodes': {lists!r}; it must hold lists by name")
    return np.array([math.nan if value is None else value for value in lists.get(key, ())], np.float64)


def _pooled(runs: Runs, key: str) -> dict[int, Floats]:
    """By round, what is known of nodes in any seed."""
    numbers = sorted({number for run in runs.values() for number in run})
    pooled = {
        number: np.concatenate([_values(run[number], key) for run in runs.values() if number in run])
        for number in numbers
    }
    known = {number: values[np.isfinite(values)] for number, values in pooled.items()}
    return {number: values for number, values in known.items() if len(values)}


def _curve(run: Mapping[int, Record], key: str, node: int) -> dict[int, float]:
    """What is known of a node, by round."""
    values = {number: _values(record, key) for number, record in run.items()}
    known = {number: float(row[node]) for number, row in values.items() if len(row) > node}
    return {number: value for number, value in known.items() if math.isfinite(value)}


def _final(run: Mapping[int, Record], nodes: int) -> Floats:
    """[nodes] accuracies at the last evaluation."""
    found = [values for record in run.values() if len(values := _values(record, "accuracy"))]
    if found and len(found[-1]) != nodes:
        raise UserError(f"a metrics record has accuracies of {len(found[-1])} nodes; the graph has {nodes}")
    return found[-1] if found else np.full(nodes, math.nan)
