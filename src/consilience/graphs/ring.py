"""A ring: every node hears the one before and the one after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.graphs import lazily as nx
from consilience.graphs.base import Graph


@final
@dataclass(frozen=True)
class Ring(Graph):
    """A ring: every node hears the one before and the one after it."""

    name: ClassVar[str] = "ring"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.cycle_graph(nodes) if nodes > 1 else nx.empty_graph(1)
        return graph
