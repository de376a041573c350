"""Memories of all clients. Only the cohort's rows ever go to the compute device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from consilience import tree
from consilience.engine.batches import IntArray
from consilience.types import State

Initial = Callable[[IntArray], State]
"""Initial memories for some rows, stacked."""


class Store:
    """One row of memory for every client of every replica, on the host.

    A row exists from its client's first round on; until then it is what `initial` gives. Pages of rows
    that were never written take no memory.
    """

    def __init__(self, rows: int, initial: Initial, device: torch.device) -> None:
        self._initial, self._device = initial, device
        self._seen = np.zeros(rows, dtype=np.bool_)
        self._rows: State = {}
        self._stateless = False  # found out at the first load; initial memories need not be made again

    def load(self, rows: Sequence[int] | IntArray) -> State:
        """The memories of some clients, stacked, on the compute device."""
        wanted = np.asarray(rows, dtype=np.int64)
        if self._stateless:
            return {}
        fresh = self._initial(wanted)
        self._stateless = not fresh
        seen = self._seen[wanted]
        if not fresh or not seen.any():
            return fresh
        host = torch.from_numpy(wanted[seen])
        places = torch.from_numpy(np.flatnonzero(seen)).to(self._device)
        return {
            group: {
                name: value.index_copy(0, places, self._rows[group][name][host].to(self._device))
                for name, value in params.items()
            }
            for group, params in fresh.items()
        }

    def save(self, rows: Sequence[int] | IntArray, memories: State) -> None:
        """Keep the memories of some clients."""
        wanted = np.asarray(rows, dtype=np.int64)
        if not any(memories.values()) or not len(wanted):
            return
        if not self._rows:
            self._rows = tree.map_leaves(
                lambda value: torch.empty(len(self._seen), *value.shape[1:], dtype=value.dtype), memories
            )
        host = torch.from_numpy(wanted)
        for group, params in memories.items():
            for name, value in params.items():
                self._rows[group][name].index_copy_(0, host, value.cpu())
        self._seen[wanted] = True

    def snapshot(self) -> State:
        """The rows that exist, for a checkpoint: their numbers and their memories."""
        seen = torch.from_numpy(np.flatnonzero(self._seen))
        return {
            "rows": {"number": seen},
            **{f"memory.{g}": p for g, p in tree.index(self._rows, seen).items()},
        }

    def restore(self, snapshot: State) -> None:
        """The inverse of `snapshot`."""
        self._seen[:] = False
        memories = {g.removeprefix("memory."): p for g, p in snapshot.items() if g.startswith("memory.")}
        self.save(snapshot["rows"]["number"].numpy(), memories)
