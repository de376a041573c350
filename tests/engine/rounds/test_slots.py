"""Rows in a file: what a checkpoint noted is there after a kill, and nothing else is looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience.engine.rounds.slots import Slots
from consilience.errors import DamageError, UserError
from consilience.types import State

BYTES = 3 * 8 + 8  # of a row


def rows(*values: float) -> State:
    column = torch.tensor(values, dtype=torch.float64)
    return {"trend": {"w": column[:, None].expand(-1, 3).clone(), "n": column.long()}, "none": {}}


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memories" / "some.clients.1"


def reopened(path: Path, noted: State) -> Slots:
    """What another process finds after a kill."""
    slots = Slots(rows(0), path)
    slots.recall(noted["rows"])
    return slots


def test_what_was_noted_survives_whatever_was_written_after_it(path):
    slots = Slots(rows(0), path)
    slots.write(numbers(7, 3), rows(70, 30))
    noted = slots.note()
    slots.confirm()
    slots.write(numbers(3, 5), rows(31, 50))
    slots.write(numbers(3, 7), rows(32, 71))
    slots.forget([7])
    slots.write(numbers(9), rows(90))
    assert_close(reopened(path, noted).read(numbers(3, 7)), rows(30, 70), rtol=0, atol=0)
    assert reopened(path, noted).rows.tolist() == [3, 7]


def test_what_was_noted_before_survives_until_the_next_is_confirmed(path):
    slots = Slots(rows(0), path)
    slots.write(numbers(1, 2), rows(10, 20))
    first = slots.note()
    slots.confirm()
    slots.write(numbers(1, 2), rows(11, 21))
    second = slots.note()  # but a kill comes before it is in its place
    slots.write(numbers(1, 2), rows(12, 22))
    for noted, expected in ((first, rows(10, 20)), (second, rows(11, 21))):
        copy = path.with_name(f"copy {noted is first}")
        copy.write_bytes(path.read_bytes())
        assert_close(reopened(copy, noted).read(numbers(1, 2)), expected, rtol=0, atol=0)


def test_a_checkpoint_is_served_until_there_are_two_later_ones(path):
    slots, noted = Slots(rows(0), path), []
    for number in range(4):
        slots.write(numbers(1, 2), rows(10 + number, 20 + number))
        noted.append(slots.note())
        slots.confirm()
        if number == 2:  # another process goes on
            slots = reopened(path, noted[-1])
    slots.write(numbers(1, 2), rows(0, 0))
    for number in (2, 3):
        copy = path.with_name(f"copy {number}")
        copy.write_bytes(path.read_bytes())
        expected = rows(10 + number, 20 + number)
        assert_close(reopened(copy, noted[number]).read(numbers(1, 2)), expected, rtol=0, atol=0)


def test_slots_are_used_again_and_only_what_changed_is_written(path):
    slots = Slots(rows(0), path)
    slots.write(np.arange(100), rows(*range(100)))
    for number in range(20):
        slots.note()
        slots.confirm()
        slots.write(numbers(number, 50), rows(-number, number))
        slots.write(numbers(number, 50), rows(-number, number))  # it has a slot of its own by now
        assert path.stat().st_size <= 104 * BYTES  # the last two checkpoints each count on two others
    assert_close(slots.read(numbers(0, 50, 99)), rows(0, 19, 99), rtol=0, atol=0)


def test_one_that_goes_on_chooses_the_slots_of_one_that_went_on(path):
    def changed(slots: Slots) -> State:
        slots.write(numbers(4, 1, 8), rows(41, 11, 80))
        slots.forget([2])
        slots.write(numbers(6), rows(60))
        return slots.note()

    slots = Slots(rows(0), path)
    slots.write(np.arange(5), rows(*range(5)))
    slots.note()
    slots.confirm()
    slots.write(numbers(0, 3), rows(1, 31))
    noted = slots.note()
    slots.confirm()
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    assert_close(changed(slots), changed(reopened(copy, noted)), rtol=0, atol=0)


def test_a_file_is_checked_for_a_checkpoint_before_anything_goes_on(path):
    slots, noted = Slots(rows(0), path), []
    for number in range(2):
        slots.write(numbers(1, 2), rows(10 + number, 20 + number))
        noted.append(slots.note()["rows"])
        slots.confirm()
    for one in noted:
        Slots(rows(0), path).check(one)
    data = bytearray(path.read_bytes())
    data[BYTES] ^= 1  # of the row that lies in the second slot, in the first checkpoint
    path.write_bytes(data)
    Slots(rows(0), path).check(noted[1])
    with pytest.raises(DamageError, match="the digest of row 2 does not match"):
        Slots(rows(0), path).check(noted[0])
    assert path.read_bytes() == data


@pytest.mark.parametrize("place", [0, BYTES - 1, BYTES, 2 * BYTES - 1])
def test_a_changed_byte_is_noticed_when_its_row_is_read(path, place):
    slots = Slots(rows(0), path)
    slots.write(numbers(1, 2), rows(10, 20))
    noted = slots.note()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    damaged, whole = (1, 2) if place < BYTES else (2, 1)
    found = reopened(path, noted)
    assert_close(found.read(numbers(whole)), rows(10 * whole), rtol=0, atol=0)
    with pytest.raises(UserError, match=f"digest of row {damaged}"):
        found.read(numbers(damaged))


def test_a_file_that_is_too_short_is_refused(path):
    slots = Slots(rows(0), path)
    slots.write(numbers(1, 2), rows(10, 20))
    noted = slots.note()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="shorter"):
        reopened(path, noted)
