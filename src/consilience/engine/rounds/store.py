"""Memories of all clients: on the compute device while they are small, else on the host, else in a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from consilience import tree
from consilience.engine.memory import Resident, shown
from consilience.engine.rounds.passing import Passing
from consilience.engine.rounds.slots import AT_A_TIME, Slots
from consilience.errors import DamageError
from consilience.transfer import to_device
from consilience.types import Booleans, IntArray, State

LOG = logging.getLogger("consilience")

Initial = Callable[[IntArray], State]
"""A function that gives the initial memories of some rows, stacked."""

DEVICE_SHARE = 8
"""Memories stay on a GPU while they take no more than one part in so many of what may be used of it."""

PASSING_SHARE = 4
"""Those that pass with the round stay there while they take no more than one part in so many."""

HOST_BYTES = 2**31
"""Larger memories are kept in files: what is held is part of every checkpoint, whole."""


class Held:
    """Rows in the memory of a device; pages of a host's that were never written take no space."""

    def __init__(self, rows: int, form: State, device: torch.device) -> None:
        self.form = tree.map_leaves(lambda value: value.new_empty(0, *value.shape[1:]), form)
        self._device = device
        self._values = tree.map_leaves(
            lambda value: torch.empty((rows, *value.shape[1:]), dtype=value.dtype, device=device), form
        )

    def read(self, rows: IntArray) -> State:
        """Some rows, stacked."""
        return tree.index(self._values, to_device(rows, self._device))

    def write(self, rows: IntArray, memories: State) -> None:
        """Renew some rows."""
        places = to_device(rows, self._device)
        for group, params in memories.items():
            for name, value in params.items():
                self._values[group][name].index_copy_(0, places, value.to(self._device))


class Store:
    """One row of memory for every client of every replica.

    A row exists from its client's first round on; until then it is what `initial` gives. Where memories that
    are saved have other shapes than those before, what others remember would not fit them: they start anew.

    Args:
        rows: How many there are.
        initial: What is in a row before it is written.
        device: Where memories are needed.
        memory: How many bytes of the device may be used, by all that is there.
        resident: Whether memories are held in memory; else they are kept in a file, and read as cohorts need
            them.
        path: Where such files lie, but for their endings; None: in the system's folder, without names.
        fleeting: Groups that pass with the round: no later one finds them, and no checkpoint has them.
    """

    def __init__(
        self,
        rows: int,
        initial: Initial,
        device: torch.device,
        memory: int = 2**31,
        *,
        resident: Resident = "auto",
        path: Path | None = None,
        fleeting: frozenset[str] = frozenset(),
    ) -> None:
        self._rows, self._initial, self._device, self._memory = rows, initial, device, memory
        self._fleeting, self._passing = fleeting, Passing(device, memory // PASSING_SHARE)
        self._resident, self._path = resident, path
        self._seen: Booleans | None = None  # until a row is kept: there may be very many
        self._marks: dict[int, int] = {}
        self._kept: Held | Slots | None = None
        self._files = 0  # how many there were: one of other rows must not take the place of another
        self._confirmed = 0  # which of them the last checkpoint counts on
        self._groups: tuple[str, ...] = ()  # some may be without tensors, and then not in a snapshot
        self._stateless = False  # found out at the first load; initial memories need not be made again

    def load(self, rows: Sequence[int] | IntArray) -> State:
        """The memories of some clients, stacked, on the compute device."""
        wanted = np.asarray(rows, dtype=np.int64)
        if not self._fleeting:
            return self._lasting(wanted, self._initial)
        lasting = self._lasting(wanted, lambda some: tree.without(self._initial(some), self._fleeting))
        passing = self._passing.load(wanted, lambda: tree.only(self._initial(wanted), self._fleeting))
        self._groups = self._groups or tuple(self._initial(wanted[:1]))
        both = {**lasting, **passing}
        return {group: both[group] for group in self._groups}

    def _lasting(self, wanted: IntArray, initial: Initial) -> State:
        """What they remember beyond a round."""
        if self._stateless:
            return {}
        seen = np.zeros(len(wanted), dtype=np.bool_) if self._seen is None else self._seen[wanted]
        if seen.all() and len(wanted):
            self._groups = self._groups or tuple(self._initial(wanted[:1]))
            known = self._read(wanted)
            return {group: known.get(group, {}) for group in self._groups if group not in self._fleeting}
        fresh = initial(wanted)
        self._stateless = not fresh
        if not fresh or not seen.any():
            return fresh
        places = to_device(np.flatnonzero(seen), self._device)
        return tree.with_rows(fresh, places, self._read(wanted[seen]))

    def marks(self, rows: IntArray) -> tuple[int, ...]:
        """What somebody else who keeps the same memories of some clients knows them by; 0: nobody does."""
        return tuple(self._marks.get(row, 0) for row in rows.tolist())

    def save(self, rows: Sequence[int] | IntArray, memories: State, marks: Sequence[int] = ()) -> None:
        """Keep the memories of some clients; `marks`: what somebody else who keeps them knows them by."""
        wanted = np.asarray(rows, dtype=np.int64)
        for row, mark in zip(wanted.tolist(), marks or [0] * len(wanted), strict=True):
            self._marks[row] = mark
        passing = tree.only(memories, self._fleeting)
        if any(passing.values()) and len(wanted):
            self._passing.save(wanted, passing)
            memories = tree.without(memories, self._fleeting)
        if not any(memories.values()) or not len(wanted):
            return
        if self._seen is None:
            self._seen = np.zeros(self._rows, dtype=np.bool_)
        if self._kept is None or _form(self._kept.form) != _form(memories):
            self._seen[:] = False
            self._marks = {row: self._marks[row] for row in wanted.tolist()}
            self._kept = None  # what it takes may be needed for others
            self._kept = self._place(memories)
        self._kept.write(wanted, memories)
        self._seen[wanted] = True

    def end_round(self) -> None:
        """Let everything go that passes with the round, also where somebody else keeps it."""
        for row in self._passing.rows.tolist():
            self._marks.pop(row, None)
        self._passing.clear()

    def forget(self, rows: IntArray) -> None:
        """Let some clients start anew."""
        for row in rows.tolist():
            self._marks.pop(row, None)
        if self._seen is not None:
            self._seen[rows] = False
        if isinstance(self._kept, Slots):
            self._kept.forget(rows.tolist())

    def _place(self, form: State) -> Held | Slots:
        """The place of all memories of a form."""
        size = _row_bytes(form) * self._rows
        on_device = self._device.type == "cuda" and size <= self._memory // DEVICE_SHARE
        if self._in_files(size):
            self._files += 1
            if self._resident == "auto" and self._files == 1:
                LOG.warning(
                    "memories of %d clients take up to %s: they are kept in a file, and read as cohorts "
                    "need them",
                    self._rows,
                    shown(size),
                )
            return Slots(form, self._file(self._files))
        return Held(self._rows, form, self._device if on_device else torch.device("cpu"))

    def _in_files(self, size: int) -> bool:
        """Whether memories that take so many bytes in all are kept in files."""
        small = self._memory // DEVICE_SHARE if self._device.type == "cuda" else 0
        return self._resident == "never" or (self._resident == "auto" and size > max(small, HOST_BYTES))

    def _file(self, number: int) -> Path | None:
        return self._path and _file_of(self._path, number)

    def _read(self, rows: IntArray) -> State:
        assert self._kept is not None  # since some were seen
        return tree.map_leaves(lambda value: value.to(self._device), self._kept.read(rows))

    def snapshot(self) -> State:
        """The rows that exist, for a checkpoint: their numbers, and their memories or where these lie.

        In a file that has a name they stay where they are until a later snapshot is confirmed. The groups of
        memories then hold no rows, and say what one looks like.
        """
        seen = np.flatnonzero(() if self._seen is None else self._seen)
        if isinstance(self._kept, Slots) and self._path is not None:
            noted = self._kept.note()
            noted["rows"]["file"] = torch.tensor(self._files)
            return {**noted, **_named(self._kept.form)}
        kept = {} if self._kept is None else self._kept.read(seen)
        return {"rows": {"number": torch.from_numpy(seen)}, **_named(kept)}

    def confirm(self) -> None:
        """Let what neither the last snapshot needs, which is safe, nor the one before it go."""
        if isinstance(self._kept, Slots):
            self._kept.confirm()
            for old in filter(None, map(self._file, range(1, self._confirmed))):
                old.unlink(missing_ok=True)
            self._confirmed = self._files

    def restore(self, snapshot: State) -> None:
        """Continue from a snapshot: what was there before is forgotten."""
        self._seen = None
        self._marks = {}
        self._passing.clear()
        memories, noted = _form_of(snapshot), snapshot["rows"]
        rows = noted["number"].cpu().numpy()
        if "slot" not in noted:
            self._kept = None
            self.save(rows, tree.without(memories, self._fleeting))
            return
        self._files = int(noted["file"])
        slots = Slots(memories, _there(self._file(self._files)))
        slots.recall(noted)
        size = _row_bytes(memories)
        if self._in_files(size * self._rows) and self._fleeting.isdisjoint(memories):
            self._kept = slots
            self._seen = np.zeros(self._rows, dtype=np.bool_)
            self._seen[rows] = True
            return
        self._kept = None
        for some in np.array_split(rows, max(1, size * len(rows) // AT_A_TIME)):
            self.save(some, tree.without(slots.read(some), self._fleeting))


MEMORY = "memory."
"""What stands, in a snapshot, before the names of groups of memories."""


def check_snapshot(snapshot: State, path: Path) -> None:
    """Refuse a file of memories that does not hold what a store's snapshot counts on; nothing is changed.

    Args:
        snapshot: The snapshot, which may be of a store that keeps nothing in files.
        path: Where such files lie, but for their endings.
    """
    noted = snapshot.get("rows", {})
    if "slot" in noted:
        Slots(_form_of(snapshot), _there(_file_of(path, int(noted["file"])))).check(noted)


def _file_of(path: Path, number: int) -> Path:
    """The file of memories that has a number, where such files lie but for their endings."""
    return path.with_name(f"{path.name}.{number}")


def _there(path: Path | None) -> Path:
    if path is None or not path.exists():
        raise DamageError(f"{path or 'a file of memories'} is missing, so this run cannot go on")
    return path


def _form_of(snapshot: State) -> State:
    """What memories look like in a snapshot: all of them, or no rows where they lie in a file."""
    return {g.removeprefix(MEMORY): params for g, params in snapshot.items() if g.startswith(MEMORY)}


def _named(memories: State) -> State:
    return {f"{MEMORY}{group}": params for group, params in memories.items()}


def _row_bytes(memories: State) -> int:
    return sum(value.shape[1:].numel() * value.itemsize for value in tree.flatten(memories).values())


def _form(memories: State) -> dict[str, torch.Size]:
    return {path: value.shape[1:] for path, value in tree.flatten(memories).items()}
