"""Every edge is there with probability p; drawn again until connected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.graphs.base import RandomGraph


@final
@dataclass(frozen=True)
class ErdosRenyi(RandomGraph):
    """Every edge is there with probability p; drawn again until connected."""

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
