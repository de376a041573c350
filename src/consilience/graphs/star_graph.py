"""A star of peers, without a server: node 0 hears all others, they hear only it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.graphs import lazily as nx
from consilience.graphs.base import Graph


@final
@dataclass(frozen=True)
class StarGraph(Graph):
    """A star of peers, without a server: node 0 hears all others, they hear only it."""

    name: ClassVar[str] = "star_graph"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.star_graph(nodes - 1)
        return graph
