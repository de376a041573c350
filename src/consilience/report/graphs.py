"""Graphs of peers: what their shape means for how fast news spread, and a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from scipy.sparse.csgraph import connected_components, shortest_path

from consilience.errors import UserError
from consilience.graphs.base import Adjacency, metropolis
from consilience.report.saving import save

Floats = npt.NDArray[np.float64]

INK, EDGE = "#333333", "#a6a6a6"
COLOURS = "YlGnBu"  # from light to dark
FONT, POINTS_PER_INCH = 9, 72
SEED = 0
DIAMETER = 0.42  # of a node, where nodes are about 1 apart


@dataclass(frozen=True)
class GraphStatistics:
    """The shape of a graph."""

    nodes: int
    edges: int
    degree_min: int
    degree_mean: float
    degree_max: int
    components: int
    diameter: int
    """The most steps that news need from one node to another, in the largest component."""
    spectral_gap: float
    """1 - |lambda_2| of the Metropolis-Hastings weights: how much nearer to each other nodes come in a round
    of averages, from 0 (never, the graph is not connected) to 1 (all the way)."""
    clustering: float
    """How often two neighbours of a node hear each other, on average over nodes."""


def graph_statistics(adjacency: Adjacency) -> GraphStatistics:
    """What can be said about a graph in numbers."""
    degrees = adjacency.sum(1)
    components, membership = connected_components(adjacency, directed=False)
    largest = membership == np.bincount(membership).argmax()
    steps = shortest_path(adjacency[np.ix_(largest, largest)], directed=False, unweighted=True)
    return GraphStatistics(
        nodes=len(adjacency),
        edges=int(degrees.sum()) // 2,
        degree_min=int(degrees.min()),
        degree_mean=float(degrees.mean()),
        degree_max=int(degrees.max()),
        components=int(components),
        diameter=int(steps.max()),
        spectral_gap=_spectral_gap(adjacency),
        clustering=_clustering(adjacency),
    )


def _spectral_gap(adjacency: Adjacency) -> float:
    sizes = np.sort(np.abs(np.linalg.eigvalsh(metropolis(adjacency))))
    # A single node agrees with itself; rounding must not make a gap negative.
    return max(0.0, float(1 - sizes[-2])) if len(sizes) > 1 else 1.0


def _clustering(adjacency: Adjacency) -> float:
    matrix, degrees = adjacency.astype(np.float64), adjacency.sum(1)
    closed = ((matrix @ matrix) * matrix).sum(1)  # ordered pairs of neighbours that hear each other
    return float((closed / np.maximum(degrees * (degrees - 1), 1)).mean())


def graph_plot(
    adjacency: Adjacency, sizes: Sequence[int], path: Path, title: str = "", names: Sequence[str] = ()
) -> None:
    """Draw a graph of peers into an image file.

    Args:
        adjacency: [nodes, nodes] who hears whom.
        sizes: how many rows of data each node holds.
        path: where to write; its ending chooses the format.
        title: a line above the plot.
        names: what nodes are called; by default they bear their numbers.
    """
    save(graph_figure(adjacency, sizes, title, names), path)


def graph_figure(
    adjacency: Adjacency, sizes: Sequence[int], title: str = "", names: Sequence[str] = ()
) -> Figure:
    """The figure of `graph_plot`: dark and somewhat larger nodes hold more data; all say who they are."""
    nodes = len(adjacency)
    if len(sizes) != nodes:
        raise UserError(f"{len(sizes)} sizes for {nodes} nodes; give one for each")
    # All lengths in inches.
    side = float(np.clip(0.65 * nodes**0.5, 6, 12))
    left, right, bottom, top = 0.1, 1.05, 0.1, 0.42 if title else 0.1
    width, height = left + side + right, bottom + side + top
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    axes.set_axis_off()
    axes.set_title(title, fontsize=FONT + 2, color=INK, loc="left")

    places = layout(adjacency)
    low, high = places.min(0), places.max(0)
    extent = float((high - low).max()) + 1
    axes.set_xlim((low + high)[0] / 2 - extent / 2, (low + high)[0] / 2 + extent / 2)
    axes.set_ylim((low + high)[1] / 2 - extent / 2, (low + high)[1] / 2 + extent / 2)
    ends = np.argwhere(np.triu(adjacency))
    thickness = float(np.clip(200 / max(len(ends), 1), 0.25, 0.8))
    axes.add_collection(LineCollection(list(places[ends]), colors=EDGE, linewidths=thickness, zorder=1))
    diameter = min(DIAMETER * side * POINTS_PER_INCH / extent, 26)
    shown = _draw_nodes(axes, places, np.asarray(sizes), diameter, numbered=not names)
    write_names(axes, places, names, diameter)

    beside = figure.add_axes(
        ((left + side + 0.2) / width, (bottom + side / 4) / height, 0.15 / width, side / 2 / height)
    )
    figure.colorbar(shown, cax=beside).outline.set_visible(False)
    beside.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    beside.set_title("rows", fontsize=FONT, color=INK, loc="left")
    return figure


def write_names(axes: Axes, places: Floats, names: Sequence[str], diameter: float) -> None:
    """Write names below nodes of such a diameter (in points), where there are any."""
    for name, (x, y) in zip(names, places, strict=False):
        below = (0, -diameter / 2 - 2)
        axes.annotate(
            name,
            (x, y),
            below,
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=FONT - 2,
            color=INK,
        )


def _draw_nodes(
    axes: Axes, places: Floats, sizes: npt.NDArray[np.int64], diameter: float, *, numbered: bool
) -> PathCollection:
    """Nodes of at most such a diameter (in points), with their numbers or without."""
    # Colours start at no data: a small difference must not look like a large one.
    largest = max(int(sizes.max()), 1)
    shares = sizes / largest
    shown = axes.scatter(
        places[:, 0],
        places[:, 1],
        s=diameter**2 * (0.6 + 0.4 * shares),
        c=sizes,
        cmap=COLOURS,
        vmin=0,
        vmax=largest,
        edgecolors=INK,
        linewidths=0.4,
        zorder=2,
    )
    digits = len(str(len(sizes) - 1))
    for node, (x, y) in enumerate(places if numbered else ()):
        axes.text(
            x,
            y,
            str(node),
            fontsize=min(diameter / (digits + 0.6), FONT),
            color="white" if shares[node] > 0.6 else INK,
            ha="center",
            va="center_baseline",
            zorder=3,
        )
    return shown


def layout(adjacency: Adjacency) -> Floats:
    """[nodes, 2] where nodes are drawn, about 1 apart: components in rows, the largest first."""
    count, membership = connected_components(adjacency, directed=False)
    components = [np.flatnonzero(membership == number) for number in range(count)]
    places = np.zeros((len(adjacency), 2))
    width = len(adjacency) ** 0.5 + 1
    x = y = row = 0.0
    for nodes in sorted(components, key=len, reverse=True):
        inside = len(nodes) ** 0.5 if len(nodes) > 1 else 0.0
        side = inside + 1
        if x + side > width:
            x, y, row = 0.0, y - row, 0.0
        corner = np.array([x + 0.5, y - side + 0.5])
        places[nodes] = corner + inside * _spring_layout(adjacency[np.ix_(nodes, nodes)])
        x, row = x + side, max(row, side)
    return _pushed_apart(places, least=1.1 * DIAMETER)


def _pushed_apart(places: Floats, least: float) -> Floats:
    """Nodes that are nearer to each other than `least` step aside."""
    for _ in range(200):
        ways = places[:, None] - places
        gaps = np.linalg.norm(ways, axis=-1, keepdims=True)
        lacking = np.where(gaps > 0, np.maximum(least - gaps, 0), 0)
        if lacking.max() < 0.02 * least:
            break
        places = places + (lacking * ways / np.where(gaps > 0, gaps, 1)).sum(1) / 2
    return places


def _spring_layout(adjacency: Adjacency) -> Floats:
    """[nodes, 2] a connected graph in the unit square.

    Springs untangle no knots, so they start from a plane in which distances are nearly those of the graph
    (classical scaling): a ring comes out round, and a grid flat.
    """
    if len(adjacency) == 1:
        return np.zeros((1, 2))
    squares = shortest_path(adjacency, directed=False, unweighted=True) ** 2
    centred = squares - squares.mean(0) - squares.mean(0)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    start = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    # Where all directions are alike, as in a complete graph, nodes would start on top of each other.
    start = start / np.abs(start).max() + np.random.default_rng(SEED).normal(0, 0.03, start.shape)
    graph = nx.from_numpy_array(adjacency.astype(np.int64))
    found = nx.spring_layout(graph, pos=dict(enumerate(start)), iterations=50, seed=SEED)
    places = np.array([found[node] for node in range(len(adjacency))])
    low, high = places.min(0), places.max(0)
    return np.asarray(0.5 + (places - (low + high) / 2) / (high - low).max())
