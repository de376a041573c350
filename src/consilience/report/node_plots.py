"""The nodes of a graph of peers over rounds: how good they are, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from consilience.problems import Metric
from consilience.report.bubbles import FONT, INK
from consilience.report.node_records import (
    Curve,
    Method,
    Peers,
    chosen_nodes,
    least_apart,
    methods_by_setting,
    node_curve,
    node_names,
    pooled_values,
)
from consilience.report.plots import (
    BESIDE,
    COLOURS,
    COLUMNS,
    LINE,
    add_legend,
    canvas,
    folded,
    frame,
    line,
    logarithmic,
    within_bounds,
)
from consilience.report.saving import save
from consilience.report.summary import Record

LIGHT, DARK = 0.13, 0.25
BRIEF = 24  # letters in a line of a legend


def nodes_plot(
    records: Sequence[Record],
    peers: Mapping[str, Peers],
    metric: Metric,
    path: Path,
    title: str,
    nodes: Sequence[int] | None = None,
) -> None:
    """Draw the score, curvature and consensus of nodes over rounds into a file.

    Args:
        records: as in a metrics file; rounds without lists over nodes are skipped, and so are nulls in them.
        peers: by setting; those that are not named are left out.
        metric: the score.
        path: where to write; its ending chooses the format.
        title: a line above the plot.
        nodes: whose curvature to draw; by default up to six that hold least, medium and most data.
    """
    save(nodes_figure(records, peers, metric, title, nodes), path)


def nodes_figure(
    records: Sequence[Record],
    peers: Mapping[str, Peers],
    metric: Metric,
    title: str,
    nodes: Sequence[int] | None = None,
) -> Figure:
    """The figure of `nodes_plot`, a block of panels for each setting.

    Score: a panel for each method, the mean over nodes and seeds in a band of ± one standard deviation,
    within a lighter one from the worst to the best node; dashed, the mean after local training.
    Curvature: a panel for each method that sends it, lines for some nodes, of one seed.
    Consensus: the distance from the mean model, the mean over nodes and seeds; a line for each method.
    """
    blocks = [
        _block(setting, methods, peers[setting], chosen_nodes(peers[setting], nodes))
        for setting, methods in methods_by_setting(records, peers).items()
    ]
    columns = max(min(len(block.methods), COLUMNS) for block in blocks)
    panel = 3.4 if columns > 2 else 4.4  # this and all lengths in inches
    heights = [sum(block.heights(columns)) for block in blocks]
    figure = canvas((panel * columns + BESIDE, 0.4 + sum(heights)), title)
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, block in zip(parts, blocks, strict=True):
        if len(blocks) > 1:
            part.suptitle(block.setting, x=0.01, ha="left", fontsize=FONT + 1, color=INK)
        _draw_block(part, block, metric, columns, [panel] * columns + [BESIDE])
    return figure


@dataclass(frozen=True)
class _Block:
    """What is drawn of a setting."""

    setting: str
    methods: Mapping[str, Method]
    curvatures: Mapping[str, Sequence[Curve]]
    """The curvature of each chosen node, by the methods that have any."""
    nodes: Sequence[str]
    """What the chosen ones are called."""
    distances: Mapping[str, Curve]
    """The distances from consensus, by the methods that have any."""
    seed: int

    def rows(self, columns: int) -> tuple[int, int]:
        """How many rows there are of scores, and of all else."""
        others = len(self.curvatures) + bool(self.distances)
        return math.ceil(len(self.methods) / columns), math.ceil(others / columns)

    def heights(self, columns: int) -> list[float]:
        """The heights of rows, with room for panels and for the legends beside them."""
        first, others = self.rows(columns)
        lines = sum(folded(label, BRIEF).count("\n") + 1 for label in self.distances) + 2
        lines += len(self.nodes) + 2 if self.curvatures else 0
        return [2.6] * first + [max(2.6, (0.8 + LINE * lines) / max(others, 1))] * others


def _block(setting: str, methods: Mapping[str, Method], peers: Peers, chosen: Sequence[int]) -> _Block:
    curvatures = {
        label: [node_curve(method.runs.get(peers.seed, {}), "curvature", node) for node in chosen]
        for label, method in methods.items()
    }
    distances = {
        label: {
            number: float(values.mean()) for number, values in pooled_values(method.runs, "consensus").items()
        }
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
        nodes=node_names(peers, chosen),
        distances={label: curve for label, curve in apart.items() if curve},
        seed=peers.seed,
    )


def _draw_block(
    part: SubFigure, block: _Block, metric: Metric, columns: int, widths: Sequence[float]
) -> None:
    """The score in the first rows, curvature in the next; consensus takes what is left of those."""
    first, others = block.rows(columns)
    heights = block.heights(columns)
    grid = part.add_gridspec(first + others, columns + 1, width_ratios=widths, height_ratios=heights)
    last = max(max(run) for method in block.methods.values() for run in method.runs.values())

    panels = []
    for place, (label, method) in enumerate(block.methods.items()):
        axes = part.add_subplot(grid[divmod(place, columns)])
        _draw_scores(axes, method, metric)
        frame(axes, last, label, "" if place % columns else metric.axis, metric.name)
        panels.append(axes)
    _share_scale(panels, metric)
    beside = part.add_subplot(grid[:first, -1])
    beside.set_axis_off()
    add_legend(beside, "upper left", "over nodes and seeds", _score_handles(block.methods.values(), metric))
    if not others:
        return

    beside = part.add_subplot(grid[first:, -1])
    beside.set_axis_off()
    for place, (label, curves) in enumerate(block.curvatures.items()):
        axes = part.add_subplot(grid[first + place // columns, place % columns])
        for index, curve in enumerate(curves):
            axes.add_line(line(index, list(curve), list(curve.values())))
        frame(axes, last, label, "" if place % columns else "curvature norm", "curvature")
        axes.autoscale_view(scalex=False)
    if block.curvatures:
        handles = [line(index, [], [], name) for index, name in enumerate(block.nodes)]
        add_legend(beside, "upper left", f"curvature, seed {block.seed}", handles)
    if block.distances:
        row, column = divmod(len(block.curvatures), columns)
        axes = part.add_subplot(grid[first + row, column:-1])
        for label, curve in block.distances.items():
            axes.add_line(line(block.methods[label].index, list(curve), list(curve.values())))
        frame(axes, last, "consensus", "distance from mean model", "consensus")
        logarithmic(axes, [value for curve in block.distances.values() for value in curve.values()])
        handles = [
            line(block.methods[label].index, [], [], folded(label, BRIEF)) for label in block.distances
        ]
        add_legend(beside, "lower left" if block.curvatures else "upper left", "consensus", handles)


def _draw_scores(axes: Axes, method: Method, metric: Metric) -> None:
    pooled, trained = (
        {number: metric.scale * values for number, values in pooled_values(method.runs, key).items()}
        for key in (metric.name, f"trained_{metric.name}")
    )
    rounds = np.array(list(pooled), np.float64)
    lowest, mean, highest, spread = (
        np.array([[values.min(), values.mean(), values.max(), values.std()] for values in pooled.values()])
        .reshape(-1, 4)
        .T
    )
    if len(rounds) == 1:  # which has no width, and no band would be seen
        rounds = rounds + np.array([-0.05, 0.05])
    for low, high, alpha in ((lowest, highest, LIGHT), (mean - spread, mean + spread, DARK)):
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


def _share_scale(panels: Sequence[Axes], metric: Metric) -> None:
    """One scale for all."""
    limits = [axes.dataLim.intervaly for axes in panels if axes.lines] or [np.array([0.0, metric.scale])]
    bottom, top = float(np.min(limits)), float(np.max(limits))
    margin = max(0.05 * (top - bottom), least_apart(metric, bottom, top))
    for axes in panels:
        axes.set_ylim(within_bounds(metric, bottom - margin, top + margin))


def _score_handles(methods: Iterable[Method], metric: Metric) -> list[Line2D | Patch]:
    """What the lines and bands of all methods have in common."""
    lines = [_mean_line(Line2D([], [], color=INK, linewidth=1.4, markersize=4, label="mean"), False)]
    if any(pooled_values(method.runs, f"trained_{metric.name}") for method in methods):
        after = Line2D([], [], color=INK, linewidth=1.4, markersize=4, label="mean after\nlocal training")
        lines.append(_mean_line(after, True))
    # The darker band lies on the lighter one.
    both = 1 - (1 - LIGHT) * (1 - DARK)
    bands = [("± 1 standard deviation", both), ("worst to best node", LIGHT)]
    return [*lines, *(Patch(color=INK, alpha=alpha, linewidth=0, label=label) for label, alpha in bands)]
