"""A small world: a ring of k nearest neighbours, where every edge is rewired with probability p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.graphs.base import RandomGraph


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
