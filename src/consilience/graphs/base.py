"""Who hears whom: a star around a server, or a graph of peers (networkx)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.reading import machine_memory
from consilience.sweeping import Sweepable
from consilience.types import Booleans, IntArray

Adjacency = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
"""[nodes, nodes] who (rows) hears whom (columns)."""
Weights = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
"""[nodes, nodes] how much a node (rows) counts what it hears from each (columns)."""

REDRAWS = 1000
"""How often a random graph is drawn again before it is said that it will not be connected."""


class Topology(Sweepable, ABC):
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


def degrees_of(links: Booleans, speaks: Booleans) -> IntArray:
    """[nodes] how many neighbours have something to say.

    Args:
        links: [receivers, senders] the neighbours.
        speaks: [nodes] who has data.
    """
    counts: IntArray = (links & speaks).sum(-1)
    return counts


def mixing_of(heard: Booleans, degrees: IntArray) -> Weights:
    """[receivers, senders] Metropolis-Hastings weights; those of unheard neighbours are the node's own.

    Args:
        heard: [receivers, senders] who was heard, a node itself among them.
        degrees: [nodes] how many neighbours of each have something to say, heard or not (`degrees_of`).

    A node that has nothing to say itself follows all whom it hears alike.
    """
    own = np.eye(len(heard), dtype=np.bool_)
    others = (heard & ~own) / (1.0 + np.maximum.outer(degrees, degrees))
    mixing = others + own * (1 - others.sum(-1, keepdims=True))
    alike = heard / np.maximum(heard.sum(-1, keepdims=True), 1)
    chosen: Weights = np.where(heard.diagonal()[:, None], mixing, alike)
    return chosen


@dataclass(frozen=True)
class Graph(Topology):
    """A graph of peers, without a server."""

    allow_disconnected: bool = field(default=False, kw_only=True)

    def adjacency(self, nodes: int, random: np.random.Generator) -> Adjacency | None:
        size = nodes**2 * np.dtype(np.float64).itemsize
        if size > machine_memory() // 2:
            raise UserError(
                f"topology {self.name}: who hears whom of {nodes:,} nodes takes {size / 1e9:,.3g} GB"
            )
        return super().adjacency(nodes, random)

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
        """The options with which graphs were not connected, and a hint with which they usually are."""
