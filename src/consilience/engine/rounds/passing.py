"""What clients remember within a round alone: it stays as it came from their work, and goes at the end."""

from __future__ import annotations

from collections.abc import Callable

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
        most: How many bytes of them stay there; what is more waits on the host.
    """

    def __init__(self, device: torch.device, most: int) -> None:
        self._device, self._most = device, most
        self._parts: dict[bytes, tuple[IntArray, State]] = {}

    def load(self, rows: IntArray, initial: Callable[[], State]) -> State:
        """The memories of some clients, stacked: what was written last, else what `initial` gives."""
        own = self._parts.get(rows.tobytes())
        if own is not None:
            return tree.map_leaves(self._back, own[1])
        found = initial()
        for written, memories in self._parts.values():
            _, here, there = np.intersect1d(rows, written, assume_unique=True, return_indices=True)
            if len(here):
                some = tree.index(memories, to_device(there, _device_of(memories)))
                found = tree.with_rows(
                    found, to_device(here, self._device), tree.map_leaves(self._back, some)
                )
        return found

    def save(self, rows: IntArray, memories: State) -> None:
        """Renew the memories of some clients."""
        self._parts.pop(rows.tobytes(), None)  # so that what is written last is found last
        held = sum(tree.nbytes(one) for _, one in self._parts.values() if _device_of(one) == self._device)
        if held + tree.nbytes(memories) > self._most:
            memories = tree.map_leaves(self._away, memories)
        self._parts[rows.tobytes()] = rows.copy(), memories

    def clear(self) -> None:
        """Forget everything: the round is over."""
        self._parts = {}

    def _away(self, value: Tensor) -> Tensor:
        pinned = self._device.type == "cuda"  # several times as fast, each way
        return torch.empty(value.shape, dtype=value.dtype, pin_memory=pinned).copy_(value)

    def _back(self, value: Tensor) -> Tensor:
        return value.to(self._device, non_blocking=True)


def _device_of(memories: State) -> torch.device:
    return next(value.device for params in memories.values() for value in params.values())
