"""A server and its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from consilience.graphs.base import Topology


@final
@dataclass(frozen=True)
class Star(Topology):
    """A server and its clients."""

    name: ClassVar[str] = "star"
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> None:
        return None
