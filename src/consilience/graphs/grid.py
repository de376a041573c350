"""A rectangle in which every node hears those beside, above and below it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.errors import UserError
from consilience.graphs import lazily as nx
from consilience.graphs.base import Graph


@final
@dataclass(frozen=True)
class Grid(Graph):
    """A rectangle in which every node hears those beside, above and below it.

    Attributes:
        rows: How many rows there are; by default those of the rectangle nearest to a square.
        periodic: Whether opposite sides are joined, as on a torus.
        nodes: How many nodes there are; None: as many as clients.
    """

    name: ClassVar[str] = "grid"
    rows: int | None = None
    periodic: bool = False
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise UserError(f"grid: rows must be at least 1, not {self.rows}")

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        rows = self.rows or max(count for count in range(1, math.isqrt(nodes) + 1) if nodes % count == 0)
        if nodes % rows:
            raise UserError(f"grid: {nodes} nodes do not make {rows} rows of the same length")
        if self.rows is None and rows == 1 and nodes > 3:
            raise UserError(
                f"grid: {nodes} nodes make no rectangle, as {nodes} is prime; "
                f"take {nodes - 1} or {nodes + 1}, or set rows: 1"
            )
        places = nx.grid_2d_graph(rows, nodes // rows, periodic=self.periodic)
        graph: nx.Graph[int] = nx.convert_node_labels_to_integers(places)
        return graph
