"""A graph in a file: a list of edges, GraphML, or adjacency as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.graphs.base import Graph
from consilience.graphs.files import order, read_graph


@final
@dataclass(frozen=True)
class FromFile(Graph):
    """A graph in a file: a list of edges, GraphML, or adjacency as JSON.

    Nodes are numbered in the order of their names, whole numbers first and numerically.

    Attributes:
        path: The file, which ends in .edges, .txt or .csv (a pair of names a line, # before comments),
            .graphml, or .json ({"0": [1, 2], ...}, or what networkx's adjacency_data gives).
        nodes: How many nodes the file holds.
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
