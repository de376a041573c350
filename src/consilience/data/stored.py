"""Inputs that stay where they are stored until batches need them, and inputs of either kind in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.types import IntArray

CHUNK_ROWS, CHUNK_BYTES = 4096, 2**28
"""How many rows, and how many bytes, are looked at together in a pass over all inputs, at most."""


class Stored(ABC):
    """Inputs that are read row by row, when they are asked for; their files must not change meanwhile."""

    shape: torch.Size
    """[rows, ...]."""
    dtype: torch.dtype

    @abstractmethod
    def rows(self, numbers: IntArray) -> Tensor:
        """The inputs of some rows, in the order of their numbers."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, some: slice) -> Tensor:
        return self.rows(np.arange(*some.indices(len(self)), dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """How much memory all rows would take."""
        return self.shape.numel() * self.dtype.itemsize


Inputs: TypeAlias = Tensor | Stored
"""Inputs in memory, or where they are stored."""


@final
class Mapped(Stored):
    """A memory-mapped array, of which the system reads the pages that are looked at."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        named = getattr(array, "filename", None)
        self.file = None if named is None else Path(named)
        self.bytes = self._found()
        # Whole numbers that are no bytes are tokens.
        self.tokens = array.dtype.kind in "iu" and array.dtype != np.uint8
        self.shape = torch.Size(array.shape)
        self.dtype = self.rows(np.zeros(0, dtype=np.int64)).dtype

    def _found(self) -> int | None:
        """How large the file is; None where there is none, or none any more: its pages stay until the end."""
        return self.file.stat().st_size if self.file is not None and self.file.exists() else None

    def rows(self, numbers: IntArray) -> Tensor:
        found = self._found()
        if found is not None and self.bytes is not None and found < self.bytes:
            # To read what is gone would end the process without a word.
            raise UserError(
                f"{self.file} has become shorter; files of data must stay as they are during a run"
            )
        chosen = np.ascontiguousarray(self.array[numbers])
        return torch.from_numpy(chosen.astype(np.int64) if self.tokens else chosen)


@final
class Kept(Stored):
    """A tensor in the host's memory; a device on which it does not fit gets the rows that it needs."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype = tensor, tensor.shape, tensor.dtype

    def rows(self, numbers: IntArray) -> Tensor:
        return self.tensor.index_select(0, torch.from_numpy(numbers))


@final
class Joined(Stored):
    """Inputs of one kind, the rows of one part after those of another."""

    def __init__(self, parts: Sequence[Inputs]) -> None:
        self.parts = [Kept(part) if isinstance(part, Tensor) else part for part in parts]
        self.dtype = self.parts[0].dtype
        self.shape = torch.Size((sum(map(len, self.parts)), *self.parts[0].shape[1:]))

    @cached_property
    def _ends(self) -> IntArray:
        return np.cumsum([len(part) for part in self.parts])

    def rows(self, numbers: IntArray) -> Tensor:
        owners = np.searchsorted(self._ends, numbers, side="right")
        found = torch.empty((len(numbers), *self.shape[1:]), dtype=self.dtype)
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            part = self.parts[owner]
            found[torch.from_numpy(places)] = part.rows(numbers[places] - (self._ends[owner] - len(part)))
        return found


def chunks(inputs: Inputs) -> Iterator[Tensor]:
    """All inputs in order, as many rows at a time as take little memory."""
    rows, width = len(inputs), max(1, inputs.shape[1:].numel() * inputs.dtype.itemsize)
    step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // width))
    for begin in range(0, rows, step):
        yield inputs[begin : begin + step].detach()


def whole(inputs: Inputs) -> Tensor:
    """All inputs, in memory."""
    return inputs if isinstance(inputs, Tensor) else inputs[:]
