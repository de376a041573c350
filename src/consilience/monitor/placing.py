"""Where members are drawn, between 0 and 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

SPRINGS = 400
"""The most nodes for which places are looked for; more stand in a circle, since that would take minutes."""

Spots = list[tuple[float, float]]


def in_circle(members: int) -> Spots:
    """Places around a hub, the first one on top."""
    turns = [2 * math.pi * index / max(members, 1) for index in range(members)]
    return [(0.5 + 0.5 * math.sin(turn), 0.5 - 0.5 * math.cos(turn)) for turn in turns]


def placed(members: int, edges: Sequence[tuple[int, int]]) -> Spots:
    """Places for the nodes of a graph."""
    return in_circle(members) if members > SPRINGS else _by_springs(members, tuple(edges))


@functools.lru_cache(maxsize=64)
def _by_springs(members: int, edges: tuple[tuple[int, int], ...]) -> Spots:
    from consilience.report.graphs import layout  # with matplotlib, which takes a second

    adjacency = np.zeros((members, members), dtype=np.bool_)
    for one, other in edges:
        adjacency[one, other] = adjacency[other, one] = one != other
    places = layout(adjacency)
    low, high = places.min(0), places.max(0)
    scaled = 0.5 + (places - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    return [(round(float(x), 4), round(float(y), 4)) for x, y in scaled]
