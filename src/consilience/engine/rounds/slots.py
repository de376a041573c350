"""Rows in a file that checkpoints can count on: what one of them confirmed is not written over.

A row lies in a slot. One that is renewed gets another slot, unless it has had one of its own since the last
checkpoint; slots that neither the last two checkpoints nor anybody else needs are used again. A checkpoint
therefore holds where rows lie and a digest of each, and costs what was changed since the one before. Whatever
else is in the file (of a process that was killed, say) is never looked at.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.errors import DamageError, UserError
from consilience.types import IntArray, State

PIECES = 512
"""How many tensors are read or written by one call, at most."""
AT_A_TIME = 2**28
"""How many bytes are read at a time where all rows are."""


class Place(NamedTuple):
    """Where a row lies, and what must be there."""

    slot: int
    digest: bytes


class Slots:
    """Rows of one form in a file.

    Args:
        form: What a row looks like: every tensor is [any number of rows, ...].
        path: The file; None: one without a name, which is gone when nobody uses it any more.
    """

    def __init__(self, form: State, path: Path | None = None) -> None:
        self.form = tree.map_leaves(lambda value: value[:0].cpu(), form)
        self.path = path
        kinds = tree.flatten(self.form).values()
        self._size = sum(math.prod(value.shape[1:]) * value.itemsize for value in kinds)
        self._places: dict[int, Place] = {}
        self._unread: set[int] = set()  # rows that another process wrote, whose digest was not checked yet
        self._end = 0
        self._free: list[int] = []
        self._kept: set[int] = set()  # slots that a checkpoint counts on, or one that is being written
        self._noted: set[int] = set()
        self._confirmed: set[int] = set()  # those of the last checkpoint that is there
        if path is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        else:
            self._file = _opened(path)

    @property
    def rows(self) -> IntArray:
        """The numbers of all rows that exist, in order."""
        return np.array(sorted(self._places), dtype=np.int64)

    def read(self, rows: IntArray) -> State:
        """Some rows, stacked."""
        found = tree.map_leaves(
            lambda value: torch.empty((len(rows), *value.shape[1:]), dtype=value.dtype), self.form
        )
        for row, views in zip(rows.tolist(), _rows_of(tree.flatten(found)), strict=True):
            place = self._places[row]
            self._move(os.preadv, views, place.slot)
            if row in self._unread:
                if _digest(views) != place.digest:
                    raise self._damaged(row)
                self._unread.discard(row)
        return found

    def write(self, rows: IntArray, memories: State) -> None:
        """Renew some rows."""
        held = {path: value.cpu().contiguous() for path, value in tree.flatten(memories).items()}
        for row, views in zip(rows.tolist(), _rows_of(held), strict=True):
            slot = self._slot_for(row)
            self._move(os.pwritev, views, slot)
            self._places[row] = Place(slot, _digest(views))
            self._unread.discard(row)

    def forget(self, rows: Sequence[int]) -> None:
        """Let some rows exist no more."""
        for row in rows:
            place = self._places.pop(row, None)
            self._unread.discard(row)
            if place is not None and place.slot not in self._kept:
                heappush(self._free, place.slot)

    def _slot_for(self, row: int) -> int:
        known = self._places.get(row)
        if known is not None and known.slot not in self._kept:
            return known.slot
        if self._free:
            return heappop(self._free)  # the first: a run that goes on shall choose like one that went on
        self._end += 1
        return self._end - 1

    def note(self) -> State:
        """Where all rows lie, for a checkpoint; what it counts on is on disk when this returns."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from None
        self._noted = {place.slot for place in self._places.values()}
        self._kept |= self._noted  # those of the checkpoint before, too: this one is not there yet
        rows = self.rows
        places = [self._places[row] for row in rows.tolist()]
        digests = np.frombuffer(b"".join(place.digest for place in places), dtype=np.uint8)
        return {
            "rows": {
                "number": torch.from_numpy(rows),
                "slot": torch.tensor([place.slot for place in places], dtype=torch.int64),
                "digest": torch.from_numpy(digests.reshape(len(places), -1).copy()),
                "before": torch.tensor(sorted(self._confirmed), dtype=torch.int64),
            }
        }

    def confirm(self) -> None:
        """Let slots be used again that neither the checkpoint, which is there now, nor the last one needs."""
        self._kept, self._confirmed = self._noted | self._confirmed, self._noted
        needed = self._kept | {place.slot for place in self._places.values()}
        self._end = max(needed, default=-1) + 1
        self._free = [slot for slot in range(self._end) if slot not in needed]  # in order, so a heap
        if self._file.writable():
            self._file.truncate(self._end * self._size)

    def recall(self, noted: Mapping[str, Tensor]) -> None:
        """Go on from what a checkpoint holds."""
        self._look_up(noted)
        self._confirmed = set(noted["before"].tolist())
        self.confirm()

    def check(self, noted: Mapping[str, Tensor]) -> None:
        """Refuse a file that does not hold what a checkpoint counts on; nothing is changed."""
        self._look_up(noted)
        rows = self.rows
        for some in np.array_split(rows, max(1, len(rows) * self._size // AT_A_TIME)):
            self.read(some)

    def _look_up(self, noted: Mapping[str, Tensor]) -> None:
        """Know where rows lie, as a checkpoint holds it."""
        numbers, slots = noted["number"].tolist(), noted["slot"].tolist()
        digests = noted["digest"].cpu().numpy()
        self._places = {
            row: Place(slot, digest.tobytes())
            for row, slot, digest in zip(numbers, slots, digests, strict=True)
        }
        self._unread, self._noted = set(numbers), set(slots)
        if os.fstat(self._file.fileno()).st_size < (max(slots, default=-1) + 1) * self._size:
            raise DamageError(f"{self.path} is damaged: it is shorter than the checkpoint says")

    def _move(
        self,
        call: Callable[[int, Sequence[memoryview], int], int],
        views: Sequence[memoryview],
        slot: int,
    ) -> None:
        """Read or write one row."""
        at = slot * self._size
        for start in range(0, len(views), PIECES):
            some = views[start : start + PIECES]
            wanted = sum(len(view) for view in some)
            try:
                done = call(self._file.fileno(), some, at)
            except OSError as error:
                raise UserError(f"cannot use {self.path or 'a temporary file'}: {error.strerror}") from None
            if done != wanted:
                raise UserError(f"{self.path or 'a temporary file'}: {done} of {wanted} bytes; is it full?")
            at += wanted

    def _damaged(self, row: int) -> DamageError:
        return DamageError(f"{self.path} is damaged: the digest of row {row} does not match")


def _opened(path: Path) -> io.FileIO:
    """A file that is made where there is none; on a disk that cannot be written it can still be read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path.open("r+b", buffering=0)
    except OSError:
        return path.open("rb", buffering=0)


def _rows_of(tensors: Mapping[str, Tensor]) -> Iterator[list[memoryview]]:
    """The memory of every row of contiguous tensors, tensor by tensor; those without numbers have none."""
    columns = [
        value.reshape(len(value), math.prod(value.shape[1:])).view(torch.uint8).numpy()
        for value in tensors.values()
        if math.prod(value.shape[1:])
    ]
    for row in range(len(next(iter(tensors.values())))):
        yield [column[row].data for column in columns]


def _digest(views: Sequence[memoryview]) -> bytes:
    whole = hashlib.sha256()
    for view in views:
        whole.update(view)
    return whole.digest()
