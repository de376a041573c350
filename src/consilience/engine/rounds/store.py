"""Memories of all clients: on the compute device while they are small, else on the host, else on disk."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from io import RawIOBase
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consilience import tree
from consilience.transfer import to_device
from consilience.types import Booleans, IntArray, State

Initial = Callable[[IntArray], State]
"""A function that gives the initial memories of some rows, stacked."""


DEVICE_SHARE = 8
"""Memories stay on a GPU while they take no more than one part in so many of what may be used of it."""

HOST_BYTES = 2**31
"""Larger memories lie in temporary files; the operating system keeps in memory what fits."""


class Column(ABC):
    """One tensor of the memories, a row for every client."""

    shape: torch.Size
    """The shape of a row."""

    @abstractmethod
    def read(self, rows: IntArray) -> Tensor:
        """Some rows, stacked."""

    @abstractmethod
    def write(self, rows: IntArray, values: Tensor) -> None:
        """Renew some rows."""


class Held(Column):
    """Rows in the memory of a device; pages of a host's that were never written take no space."""

    def __init__(self, rows: int, like: Tensor, device: torch.device) -> None:
        self.shape = like.shape[1:]
        self._values = torch.empty((rows, *self.shape), dtype=like.dtype, device=device)

    def read(self, rows: IntArray) -> Tensor:
        return self._values[to_device(rows, self._values.device)]

    def write(self, rows: IntArray, values: Tensor) -> None:
        home = self._values.device
        self._values.index_copy_(0, to_device(rows, home), values.to(home))


class Filed(Column):
    """Rows in a temporary file.

    They are read and written row by row: a mapped file costs a page fault each 4 KiB, ten times as long.
    """

    def __init__(self, rows: int, like: Tensor) -> None:
        self.shape, self._dtype = like.shape[1:], like.dtype
        self._size = math.prod(self.shape) * like.itemsize
        # Without a name: it is gone when nobody uses it any more.
        self._file = cast(RawIOBase, tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
        self._file.truncate(rows * self._size)

    def read(self, rows: IntArray) -> Tensor:
        values = torch.empty((len(rows), *self.shape), dtype=self._dtype)
        for row, place in zip(rows.tolist(), _bytes(values), strict=True):
            self._file.seek(row * self._size)
            self._file.readinto(place.data)
        return values

    def write(self, rows: IntArray, values: Tensor) -> None:
        for row, content in zip(rows.tolist(), _bytes(values.cpu().contiguous()), strict=True):
            self._file.seek(row * self._size)
            self._file.write(content.data)


def _bytes(values: Tensor) -> npt.NDArray[np.uint8]:
    """[rows, bytes] the memory of a contiguous tensor."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    return cast("npt.NDArray[np.uint8]", flat.view(torch.uint8).numpy())


class Store:
    """One row of memory for every client of every replica.

    A row exists from its client's first round on; until then it is what `initial` gives. Where memories that
    are saved have other shapes than those before, what others remember would not fit them: they start anew.

    Args:
        rows: How many there are.
        initial: What is in a row before it is written.
        device: Where memories are needed.
        memory: How many bytes of the device may be used, by all that is there.
    """

    def __init__(self, rows: int, initial: Initial, device: torch.device, memory: int = 2**31) -> None:
        self._rows, self._initial, self._device, self._memory = rows, initial, device, memory
        self._seen: Booleans | None = None  # until a row is kept: there may be very many
        self._columns: dict[str, dict[str, Column]] = {}
        self._groups: tuple[str, ...] = ()  # some may be without tensors, and then not in a snapshot
        self._stateless = False  # found out at the first load; initial memories need not be made again

    def load(self, rows: Sequence[int] | IntArray) -> State:
        """The memories of some clients, stacked, on the compute device."""
        wanted = np.asarray(rows, dtype=np.int64)
        if self._stateless:
            return {}
        seen = np.zeros(len(wanted), dtype=np.bool_) if self._seen is None else self._seen[wanted]
        if seen.all() and len(wanted):
            self._groups = self._groups or tuple(self._initial(wanted[:1]))
            known = self._read(wanted)
            return {group: known.get(group, {}) for group in self._groups}
        fresh = self._initial(wanted)
        self._stateless = not fresh
        if not fresh or not seen.any():
            return fresh
        places = to_device(np.flatnonzero(seen), self._device)
        return tree.with_rows(fresh, places, self._read(wanted[seen]))

    def save(self, rows: Sequence[int] | IntArray, memories: State) -> None:
        """Keep the memories of some clients."""
        wanted = np.asarray(rows, dtype=np.int64)
        if not any(memories.values()) or not len(wanted):
            return
        if self._seen is None:
            self._seen = np.zeros(self._rows, dtype=np.bool_)
        if not self._fits(memories):
            self._seen[:] = False
            self._columns = {}  # what they take may be needed for others
            size = tree.nbytes(memories) // len(wanted) * self._rows
            self._columns = {
                group: {name: self._column(value, size) for name, value in params.items()}
                for group, params in memories.items()
            }
        for group, params in memories.items():
            for name, value in params.items():
                self._columns[group][name].write(wanted, value)
        self._seen[wanted] = True

    def _fits(self, memories: State) -> bool:
        """Whether there are columns for memories of these shapes."""
        shapes = {path: value.shape[1:] for path, value in tree.flatten(memories).items()}
        return shapes == {
            f"{group}/{name}": column.shape
            for group, columns in self._columns.items()
            for name, column in columns.items()
        }

    def forget(self, rows: IntArray) -> None:
        """Let some clients start anew."""
        if self._seen is not None:
            self._seen[rows] = False

    def _column(self, like: Tensor, size: int) -> Column:
        """The place of one tensor of memories that take so many bytes in all."""
        on_device = self._device.type == "cuda" and size <= self._memory // DEVICE_SHARE
        if not on_device and size > HOST_BYTES and like[0].numel():
            return Filed(self._rows, like)
        return Held(self._rows, like, self._device if on_device else torch.device("cpu"))

    def _read(self, rows: IntArray) -> State:
        return {
            group: {name: column.read(rows).to(self._device) for name, column in columns.items()}
            for group, columns in self._columns.items()
        }

    def snapshot(self) -> State:
        """The rows that exist, for a checkpoint: their numbers and their memories."""
        seen = np.flatnonzero(() if self._seen is None else self._seen)
        return {
            "rows": {"number": torch.from_numpy(seen)},
            **{
                f"memory.{group}": {name: column.read(seen) for name, column in columns.items()}
                for group, columns in self._columns.items()
            },
        }

    def restore(self, snapshot: State) -> None:
        """Continue from a snapshot: what was there before is forgotten."""
        self._seen = None
        memories = {g.removeprefix("memory."): p for g, p in snapshot.items() if g.startswith("memory.")}
        self.save(snapshot["rows"]["number"].cpu().numpy(), memories)
