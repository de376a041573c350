"""Every node hears the same number of others, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.graphs.base import RandomGraph


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
