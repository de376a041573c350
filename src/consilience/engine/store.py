"""Memories of all clients: on the compute device while they are small, else on the host, else on disk."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.engine.batches import IntArray
from consilience.types import State

Initial = Callable[[IntArray], State]
"""Initial memories for some rows, stacked."""


DEVICE_SHARE = 64
"""Memories stay on a GPU while they take no more than one part in so many of its memory."""

HOST_BYTES = 2**31
"""Larger memories lie in a temporary file; the operating system keeps in memory what fits."""


class Store:
    """One row of memory for every client of every replica.

    A row exists from its client's first round on; until then it is what `initial` gives. On the host and on
    disk, pages of rows that were never written take no space.
    """

    def __init__(self, rows: int, initial: Initial, device: torch.device) -> None:
        self._initial, self._device = initial, device
        self._seen = np.zeros(rows, dtype=np.bool_)
        self._rows: State = {}
        self._groups: tuple[str, ...] = ()  # some may be without tensors, and then not in a snapshot
        self._home = device
        self._stateless = False  # found out at the first load; initial memories need not be made again

    def load(self, rows: Sequence[int] | IntArray) -> State:
        """The memories of some clients, stacked, on the compute device."""
        wanted = np.asarray(rows, dtype=np.int64)
        if self._stateless:
            return {}
        seen = self._seen[wanted]
        if seen.all() and len(wanted):
            self._groups = self._groups or tuple(self._initial(wanted[:1]))
            chosen = torch.from_numpy(wanted).to(self._home)
            known = tree.map_leaves(lambda value: value[chosen].to(self._device), self._rows)
            return {group: known.get(group, {}) for group in self._groups}
        fresh = self._initial(wanted)
        self._stateless = not fresh
        if not fresh or not seen.any():
            return fresh
        places = torch.from_numpy(np.flatnonzero(seen)).to(self._device)
        known = tree.index(self._rows, torch.from_numpy(wanted[seen]).to(self._home))
        return {
            group: {
                name: value.index_copy(0, places, known[group][name].to(self._device))
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
            size = tree.nbytes(memories) // len(wanted) * len(self._seen)
            self._home = self._place(size)
            self._rows = tree.map_leaves(
                lambda value: self._blank(value, on_disk=size > HOST_BYTES), memories
            )
        rows_at_home = torch.from_numpy(wanted).to(self._home)
        for group, params in memories.items():
            for name, value in params.items():
                self._rows[group][name].index_copy_(0, rows_at_home, value.to(self._home))
        self._seen[wanted] = True

    def _place(self, size: int) -> torch.device:
        """Where memories of so many bytes are kept."""
        if self._device.type != "cuda":
            return self._device
        room = torch.cuda.get_device_properties(self._device).total_memory // DEVICE_SHARE
        return self._device if size <= room else torch.device("cpu")

    def _blank(self, like: Tensor, *, on_disk: bool) -> Tensor:
        """Space for every client's row of a stacked tensor."""
        shape = (len(self._seen), *like.shape[1:])
        size = math.prod(shape) * like.itemsize
        if not on_disk or not size or self._home.type != "cpu":
            return torch.empty(shape, dtype=like.dtype, device=self._home)
        with tempfile.TemporaryFile() as file:  # without a name: it is gone when nobody uses it any more
            file.truncate(size)
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=like.dtype).reshape(shape)

    def snapshot(self) -> State:
        """The rows that exist, for a checkpoint: their numbers and their memories."""
        seen = torch.from_numpy(np.flatnonzero(self._seen))
        return {
            "rows": {"number": seen},
            **{f"memory.{g}": p for g, p in tree.index(self._rows, seen.to(self._home)).items()},
        }

    def restore(self, snapshot: State) -> None:
        """The inverse of `snapshot`."""
        self._seen[:] = False
        memories = {g.removeprefix("memory."): p for g, p in snapshot.items() if g.startswith("memory.")}
        self.save(snapshot["rows"]["number"].cpu().numpy(), memories)
