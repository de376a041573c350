"""Everybody hears everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.graphs import lazily as nx
from consilience.graphs.base import Graph


@final
@dataclass(frozen=True)
class Complete(Graph):
    """Everybody hears everybody."""

    name: ClassVar[str] = "complete"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        graph: nx.Graph[int] = nx.complete_graph(nodes)
        return graph
