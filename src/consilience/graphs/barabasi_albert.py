"""Every new node attaches to m old ones, preferably well connected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.graphs.base import Graph


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
