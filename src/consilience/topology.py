"""Who hears whom: a star around a server, or a graph of peers (networkx)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, final

import networkx as nx
import numpy as np

from consilience.errors import UserError
from consilience.graph_files import order, read_graph

Adjacency = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Weights = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

REDRAWS = 1000
"""How often a random graph is drawn again before it is said that it will not be connected."""


class Topology(ABC):
    """A way to connect nodes."""

    name: ClassVar[str]
    nodes: int | None
    """How many nodes; None: as many as there are clients."""
    allow_disconnected: bool = False
    """Whether the graph may fall apart; else it is drawn again or refused."""

    @abstractmethod
    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int] | None:
        """A graph on 0..nodes-1, or None for a star around a server."""

    def adjacency(self, nodes: int, random: np.random.Generator) -> Adjacency | None:
        """[nodes, nodes] who hears whom (no node hears itself here); None for a star."""
        graph = self.graph(nodes, random)
        if graph is None:
            return None
        if not self.allow_disconnected and not nx.is_connected(graph):
            sizes = sorted(map(len, nx.connected_components(graph)), reverse=True)
            shown = ", ".join([*map(str, sizes[:5]), *(["..."] if len(sizes) > 5 else [])])
            raise UserError(
                f"the {self.name} graph on {nodes} nodes is not connected, it has {len(sizes)} components "
                f"(of {shown} nodes); set allow_disconnected: true if it should be so"
            )
        matrix: Adjacency = nx.to_numpy_array(graph, nodelist=range(nodes)) > 0
        return matrix


def metropolis(adjacency: Adjacency) -> Weights:
    """[nodes, nodes] the Metropolis-Hastings weights of a graph: symmetric, and doubly stochastic.

    Neighbours of degrees d_i and d_j weigh each other by 1 / (1 + max(d_i, d_j)); the rest is a node's own.
    """
    degrees = adjacency.sum(1)
    weights: Weights = adjacency / (1.0 + np.maximum.outer(degrees, degrees))
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return weights


@final
@dataclass(frozen=True)
class Star(Topology):
    """A server and its clients."""

    name: ClassVar[str] = "star"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> None:
        return None


@dataclass(frozen=True)
class Graph(Topology):
    """A graph of peers, without a server."""

    allow_disconnected: bool = field(default=False, kw_only=True)

    @abstractmethod
    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        """A graph on 0..nodes-1."""


@dataclass(frozen=True)
class RandomGraph(Graph):
    """A graph that is drawn again until it is connected, unless it need not be."""

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        for _ in range(REDRAWS):
            graph = self.draw(nodes, random)
            if self.allow_disconnected or nx.is_connected(graph):
                return graph
        options, hint = self.why(nodes)
        raise UserError(
            f"{self.name}: none of {REDRAWS} graphs with {nodes} nodes and {options} was connected; {hint}"
        )

    @abstractmethod
    def draw(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        """A graph on 0..nodes-1, connected or not."""

    @abstractmethod
    def why(self, nodes: int) -> tuple[str, str]:
        """Why graphs are not connected: with which options, and with which they usually are."""


@final
@dataclass(frozen=True)
class Complete(Graph):
    """Everybody hears everybody."""

    name: ClassVar[str] = "complete"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.complete_graph(nodes)
        return graph


@final
@dataclass(frozen=True)
class Ring(Graph):
    """Every node hears two others."""

    name: ClassVar[str] = "ring"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.cycle_graph(nodes) if nodes > 1 else nx.empty_graph(1)
        return graph


@final
@dataclass(frozen=True)
class Line(Graph):
    """A ring cut open."""

    name: ClassVar[str] = "line"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.path_graph(nodes)
        return graph


@final
@dataclass(frozen=True)
class StarGraph(Graph):
    """A star of peers, without a server: node 0 hears all others, they hear only it."""

    name: ClassVar[str] = "star_graph"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.star_graph(nodes - 1)
        return graph


@final
@dataclass(frozen=True)
class Grid(Graph):
    """A rectangle in which every node hears those beside, above and below it.

    Args:
        rows: How many; by default those of the rectangle nearest to a square.
        periodic: Whether opposite sides are joined, as on a torus.
        nodes: How many; None: as many as there are clients.
    """

    name: ClassVar[str] = "grid"
    rows: int | None = None
    periodic: bool = False
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UserError(f"grid: rows must be at least 1, not {self.rows}")

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        rows = self.rows or max(count for count in range(1, math.isqrt(nodes) + 1) if nodes % count == 0)
        if nodes % rows:
            raise UserError(f"grid: {nodes} nodes do not make {rows} rows of the same length")
        if self.rows is None and rows == 1 and nodes > 3:
            raise UserError(
                f"grid: {nodes} nodes make no rectangle, as {nodes} is prime; "
                f"take {nodes - 1} or {nodes + 1}, or set rows: 1"
            )
        places = nx.grid_2d_graph(rows, nodes // rows, periodic=self.periodic)
        graph: nx.Graph[int] = nx.convert_node_labels_to_integers(places)
        return graph


@final
@dataclass(frozen=True)
class ErdosRenyi(RandomGraph):
    """Every edge with probability p, drawn again until connected."""

    name: ClassVar[str] = "erdos_renyi"
    p: float = 0.2
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise UserError(f"erdos_renyi: p must be in (0, 1], not {self.p}")

    def draw(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.gnp_random_graph(nodes, self.p, seed=random)
        return graph

    def why(self, nodes: int) -> tuple[str, str]:
        return f"p = {self.p}", f"p above {math.log(nodes) / nodes:.2g} usually is"


@final
@dataclass(frozen=True)
class BarabasiAlbert(Graph):
    """Every new node attaches to m old ones, preferably well connected ones."""

    name: ClassVar[str] = "barabasi_albert"
    m: int = 5
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        if not 1 <= self.m < nodes:
            raise UserError(
                f"barabasi_albert: m must be from 1 to {nodes - 1} for {nodes} nodes, not {self.m}"
            )
        graph: nx.Graph[int] = nx.barabasi_albert_graph(nodes, self.m, seed=random)
        return graph


@final
@dataclass(frozen=True)
class WattsStrogatz(RandomGraph):
    """A small world: a ring of k nearest neighbours, where every edge is rewired with probability p."""

    name: ClassVar[str] = "watts_strogatz"
    k: int = 4
    p: float = 0.1
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.k < 2 or self.k % 2:
            raise UserError(f"watts_strogatz: k must be even and at least 2, not {self.k}")
        if not 0 <= self.p <= 1:
            raise UserError(f"watts_strogatz: p must be in [0, 1], not {self.p}")

    def draw(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        if self.k >= nodes:
            raise UserError(f"watts_strogatz: k must be below the {nodes} nodes, not {self.k}")
        graph: nx.Graph[int] = nx.watts_strogatz_graph(nodes, self.k, self.p, seed=random)
        return graph

    def why(self, nodes: int) -> tuple[str, str]:
        return f"k = {self.k} and p = {self.p}", "with a higher k they usually are"


@final
@dataclass(frozen=True)
class RandomRegular(RandomGraph):
    """Every node hears the same number of others, drawn at random."""

    name: ClassVar[str] = "random_regular"
    degree: int = 4
    nodes: int | None = None

    def draw(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        if not 1 <= self.degree < nodes:
            raise UserError(
                f"random_regular: degree must be from 1 to {nodes - 1} for {nodes} nodes, not {self.degree}"
            )
        if nodes * self.degree % 2:
            raise UserError(
                f"random_regular: {nodes} nodes of degree {self.degree} have {nodes * self.degree} ends of "
                "edges, an odd number; change one of both by 1"
            )
        graph: nx.Graph[int] = nx.random_regular_graph(self.degree, nodes, seed=random)
        return graph

    def why(self, nodes: int) -> tuple[str, str]:
        return f"degree = {self.degree}", "with a higher degree they usually are"


@final
@dataclass(frozen=True)
class FromFile(Graph):
    """A graph in a file: a list of edges, GraphML, or adjacency as JSON.

    Nodes are numbered in the order of their names, whole numbers first and numerically.

    Args:
        path: Ends in .edges, .txt or .csv (a pair of names a line, # before comments), .graphml, or .json
            ({"0": [1, 2], ...}, or what networkx's adjacency_data gives).
        nodes: As many as the file holds.
    """

    name: ClassVar[str] = "file"
    path: str = ""
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.path:  # a part without its options can be listed, but not used
            held = len(read_graph(Path(self.path)))
            if self.nodes not in (None, held):
                raise UserError(f"topology file: {self.path} holds {held} nodes, not {self.nodes}")
            object.__setattr__(self, "nodes", held)

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        if not self.path:
            raise UserError("topology file: a path is missing, e.g. {name: file, path: graph.edges}")
        named = read_graph(Path(self.path))
        if len(named) != nodes:
            raise UserError(f"topology file: {self.path} holds {len(named)} nodes, not {nodes}")
        numbers = {name: number for number, name in enumerate(sorted(named, key=order))}
        graph: nx.Graph[int] = nx.empty_graph(nodes)
        graph.add_edges_from((numbers[one], numbers[other]) for one, other in named.edges)
        return graph


TOPOLOGIES: dict[str, type[Topology]] = {
    kind.name: kind
    for kind in (
        Star,
        Complete,
        Ring,
        Line,
        StarGraph,
        Grid,
        ErdosRenyi,
        BarabasiAlbert,
        WattsStrogatz,
        RandomRegular,
        FromFile,
    )
}
