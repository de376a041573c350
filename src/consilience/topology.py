"""Who hears whom: a star around a server, or a graph of peers (networkx)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import networkx as nx
import numpy as np

from consilience.errors import UserError

Adjacency = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

REDRAWS = 1000
"""How often a random graph is drawn again before it is said that it will not be connected."""


class Topology(ABC):
    """A way to connect nodes."""

    name: ClassVar[str]
    nodes: int | None
    """How many nodes; None: as many as there are clients."""

    @abstractmethod
    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int] | None:
        """A graph on 0..nodes-1, or None for a star around a server."""

    def adjacency(self, nodes: int, random: np.random.Generator) -> Adjacency | None:
        """[nodes, nodes] who hears whom (no node hears itself here); None for a star."""
        graph = self.graph(nodes, random)
        if graph is None:
            return None
        if nodes > 1 and not nx.is_connected(graph):
            raise UserError(f"the {self.name} graph on {nodes} nodes is not connected")
        matrix: Adjacency = nx.to_numpy_array(graph, nodelist=range(nodes)) > 0
        return matrix


@final
@dataclass(frozen=True)
class Star(Topology):
    """A server and its clients."""

    name: ClassVar[str] = "star"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> None:
        return None


@final
@dataclass(frozen=True)
class Complete(Topology):
    """Everybody hears everybody."""

    name: ClassVar[str] = "complete"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.complete_graph(nodes)
        return graph


@final
@dataclass(frozen=True)
class Ring(Topology):
    """Every node hears two others."""

    name: ClassVar[str] = "ring"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.cycle_graph(nodes) if nodes > 1 else nx.empty_graph(1)
        return graph


@final
@dataclass(frozen=True)
class Line(Topology):
    """A ring cut open."""

    name: ClassVar[str] = "line"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.path_graph(nodes)
        return graph


@final
@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """Every edge with probability p, drawn again until connected."""

    name: ClassVar[str] = "erdos_renyi"
    p: float = 0.2
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise UserError(f"erdos_renyi: p must be in (0, 1], not {self.p}")

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        for _ in range(REDRAWS):
            graph: nx.Graph[int] = nx.gnp_random_graph(nodes, self.p, seed=random)
            if nodes == 1 or nx.is_connected(graph):
                return graph
        threshold = np.log(nodes) / nodes
        raise UserError(
            f"erdos_renyi: none of {REDRAWS} graphs with {nodes} nodes and p = {self.p} was connected; "
            f"p above {threshold:.2g} usually is"
        )


@final
@dataclass(frozen=True)
class BarabasiAlbert(Topology):
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


TOPOLOGIES: dict[str, type[Topology]] = {
    kind.name: kind for kind in (Star, Complete, Ring, Line, ErdosRenyi, BarabasiAlbert)
}
