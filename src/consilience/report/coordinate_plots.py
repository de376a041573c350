"""Single parameters over rounds: their curvature at some nodes, and how much a node's own value weighs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from consilience.errors import UserError
from consilience.report.bubbles import FONT, INK
from consilience.report.node_records import (
    CURVATURE,
    SHARE,
    Curve,
    Method,
    Peers,
    chosen_nodes,
    coordinates_of,
    has_coordinates,
    methods_by_setting,
    node_curve,
    node_names,
)
from consilience.report.plots import (
    BESIDE,
    COLUMNS,
    LINE,
    add_legend,
    canvas,
    folded,
    frame,
    line,
    logarithmic,
)
from consilience.report.saving import save
from consilience.report.summary import Record

FAR = 30
"""A line that stays so many times lower than another would lie on the axis of a linear scale."""

LABEL, UPPER, LOWER = 0.2, 2.0, 1.9  # inches: the height of a line above panels, and of panels


def coordinates_plot(
    records: Sequence[Record],
    peers: Mapping[str, Peers],
    path: Path,
    title: str,
    nodes: Sequence[int] | None = None,
) -> None:
    """Draw curvature of single parameters, and nodes' shares of it, over rounds into a file.

    Args:
        records: as in a metrics file; rounds without such lists are skipped, and so are nulls in them.
        peers: by setting; those that are not named are left out.
        path: where to write; its ending chooses the format.
        title: a line above the plot.
        nodes: which to draw; by default up to six that hold least, medium and most data.
    """
    save(coordinates_figure(records, peers, title, nodes), path)


def coordinates_figure(
    records: Sequence[Record],
    peers: Mapping[str, Peers],
    title: str,
    nodes: Sequence[int] | None = None,
) -> Figure:
    """The figure of `coordinates_plot`: a block for each setting, lines for some nodes, of one seed.

    For each method that sends curvature, a column for each coordinate: above, what nodes sent of it, on a
    scale of its own, since nodes are weighed against each other and not coordinates; below, the share of a
    node's own value in what it combined, on the same scale everywhere.

    Curvature is on a linear scale, where growth that ends is seen to end, unless some nodes have far more
    of some coordinate than others: then all of a setting is on logarithmic scales, with a place for zero.
    """
    if not has_coordinates(record for record in records if record["setting"] in peers):
        raise UserError(
            "no metrics records with lists of coordinates to plot; "
            "run on a graph with evaluate.coordinates, with a method that sends curvature"
        )
    drawn = [
        _block(setting, methods, peers[setting], chosen_nodes(peers[setting], nodes))
        for setting, methods in methods_by_setting(records, peers).items()
    ]
    blocks = [block for block in drawn if block.methods]
    columns = max(block.columns for block in blocks)
    panel = 3.4 if columns > 2 else 4.4  # this and all lengths in inches
    heights = [sum(block.heights) for block in blocks]
    figure = canvas((panel * columns + BESIDE, 0.4 + sum(heights)), title)
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, block in zip(parts, blocks, strict=True):
        if len(blocks) > 1:
            part.suptitle(block.setting, x=0.01, ha="left", fontsize=FONT + 1, color=INK)
        _draw_block(part, block, [panel] * columns)
    return figure


@dataclass(frozen=True)
class _Block:
    """What is drawn of a setting."""

    setting: str
    coordinates: Sequence[str]
    methods: Mapping[str, Mapping[str, Sequence[Curve]]]
    """The curves of each chosen node, by the method's label and the name of a list over nodes."""
    nodes: Sequence[str]
    """What the chosen ones are called."""
    seed: int
    last: int

    @property
    def rows(self) -> int:
        """How many rows of coordinates each method has."""
        return math.ceil(len(self.coordinates) / COLUMNS)

    @property
    def columns(self) -> int:
        """How many columns there are, as few as these rows allow: five coordinates are three above two."""
        return math.ceil(len(self.coordinates) / self.rows)

    @property
    def heights(self) -> list[float]:
        """The heights of rows of labels and panels, with room for the legend beside them."""
        labels = [_label(label).count("\n") + 1 for label in self.methods]
        heights = [height for lines in labels for height in (LABEL * lines, *[UPPER, LOWER] * self.rows)]
        return [height * max(1, (0.8 + LINE * len(self.nodes)) / sum(heights)) for height in heights]


def _block(setting: str, methods: Mapping[str, Method], peers: Peers, chosen: Sequence[int]) -> _Block:
    found = {
        label: [
            name for run in method.runs.values() for record in run.values() for name in coordinates_of(record)
        ]
        for label, method in methods.items()
    }
    coordinates = list(dict.fromkeys(name for names in found.values() for name in names))
    return _Block(
        setting=setting,
        coordinates=coordinates,
        methods={
            label: {
                word + name: [
                    node_curve(method.runs.get(peers.seed, {}), word + name, node) for node in chosen
                ]
                for name in coordinates
                for word in (CURVATURE, SHARE)
            }
            for label, method in methods.items()
            if found[label]
        },
        nodes=node_names(peers, chosen),
        seed=peers.seed,
        last=max(max(run) for method in methods.values() for run in method.runs.values()),
    )


def _label(method: str) -> str:
    return folded(method, 44)  # which is no wider than a single panel


def _draw_block(part: SubFigure, block: _Block, widths: Sequence[float]) -> None:
    """Methods below each other: a line that names one, then its panels."""
    # Panels have a grid of their own: beside a legend as high as all of them, all gaps would be the widest.
    sides = part.add_gridspec(1, 2, width_ratios=[sum(widths), BESIDE])
    beside = part.add_subplot(sides[1])
    beside.set_axis_off()
    handles = [line(index, [], [], name) for index, name in enumerate(block.nodes)]
    add_legend(beside, "upper left", f"seed {block.seed}", handles)

    heights = block.heights
    grid = sides[0].subgridspec(len(heights), len(widths), width_ratios=widths, height_ratios=heights)
    wide = any(
        _far_apart(curves[CURVATURE + name])
        for curves in block.methods.values()
        for name in block.coordinates
    )
    for number, (label, curves) in enumerate(block.methods.items()):
        top = number * (1 + 2 * block.rows)
        above = part.add_subplot(grid[top, :])
        above.set_axis_off()
        above.text(0, 0, _label(label), fontsize=FONT, fontweight="bold", color=INK, va="bottom")
        for place, name in enumerate(block.coordinates):
            row, column = divmod(place, block.columns)
            upper, lower = (part.add_subplot(grid[top + 1 + 2 * row + below, column]) for below in (0, 1))
            _draw_lines(upper, curves[CURVATURE + name])
            frame(upper, block.last, name, "" if column else "curvature", "curvature")
            upper.set_xlabel("")
            upper.tick_params(labelbottom=False)
            _scale(upper, curves[CURVATURE + name], wide)
            _draw_lines(lower, curves[SHARE + name])
            frame(lower, block.last, "", "" if column else "own share", "share")
            lower.set_ylim(-0.05, 1.05)
            lower.set_yticks([0, 0.25, 0.5, 0.75, 1])
    part.align_ylabels()


def _draw_lines(axes: Axes, curves: Sequence[Curve]) -> None:
    for index, curve in enumerate(curves):
        if curve:
            drawn = line(index, list(curve), list(curve.values()))
            drawn.set_clip_on(False)  # markers on the edge are seen as a whole
            axes.add_line(drawn)


def _far_apart(curves: Sequence[Curve]) -> bool:
    """Whether some node would lie on the axis of a linear scale, though it has something to show."""
    highest = [max(curve.values()) for curve in curves if curve]
    return max(highest, default=0) > FAR * min((value for value in highest if value > 0), default=math.inf)


def _scale(axes: Axes, curves: Sequence[Curve], wide: bool) -> None:
    """Choose the scale of curvatures, which are not negative."""
    values = [value for curve in curves for value in curve.values()]
    top = max(values, default=0)
    if wide and top > 0:
        logarithmic(axes, values)
    else:
        axes.set_ylim(-0.05 * (top or 1), 1.05 * (top or 1))
        # A power of ten in common would be written above the panel, into its title.
        axes.yaxis.set_major_formatter("{x:g}")
