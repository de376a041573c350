"""What clients remember within a round alone: it stays as it came from their work, and goes at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.transfer import to_device
from consilience.types import IntArray, State


class Passing:
    """Memories of this round, in the parts in which they were written.

    Args:
        device: Where memories are needed.
        most: How many bytes of them stay on a GPU; what is more waits on the host.
    """

    def __init__(self, device: torch.device, most: int) -> None:
        self._device, self._most = device, most
        self._parts: list[_Part] = []  # the newest last

    @property
    def rows(self) -> IntArray:
        """The rows that were written."""
        return np.unique(np.concatenate([part.rows for part in self._parts] or [np.zeros(0, np.int64)]))

    def load(self, rows: IntArray, initial: Callable[[], State]) -> State:
        """The memories of some clients, stacked: what was written last, else what `initial` gives."""
        if self._parts and np.array_equal(self._parts[-1].rows, rows):
            return self._back(self._parts[-1].memories)
        known = [part for part in self._parts if np.isin(part.rows, rows).any()]
        if len(known) == 1 and np.array_equal(known[0].rows, rows):
            return self._back(known[0].memories)
        found = initial()
        for part in known:
            _, here, there = np.intersect1d(rows, part.rows, assume_unique=True, return_indices=True)
            some = self._back(part.some(there))
            found = tree.with_rows(found, to_device(here, self._device), some)
        return found

    def save(self, rows: IntArray, memories: State) -> None:
        """Renew the memories of some clients."""
        self._parts = [part for part in self._parts if not np.isin(part.rows, rows).all()]
        size = tree.nbytes(memories)
        away = self._device.type == "cuda" and size + sum(part.held for part in self._parts) > self._most
        self._parts.append(
            _Part(rows.copy(), tree.map_leaves(_to_host, memories) if away else memories, 0 if away else size)
        )

    def clear(self) -> None:
        """Forget everything: the round is over."""
        self._parts = []

    def _back(self, memories: State) -> State:
        return tree.map_leaves(lambda value: value.to(self._device, non_blocking=True), memories)


@dataclass(frozen=True)
class _Part:
    """What some clients remember."""

    rows: IntArray
    memories: State
    held: int
    """How many bytes of it are on the device."""

    def some(self, places: IntArray) -> State:
        """What some of them remember."""
        return tree.map_leaves(lambda value: value[to_device(places, value.device)], self.memories)


def _to_host(value: Tensor) -> Tensor:
    """A copy in memory that the system cannot move, which is several times as fast, each way."""
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value)
