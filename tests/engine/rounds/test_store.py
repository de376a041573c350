"""Memories of clients: initial until written, then what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.engine.memory import Resident
from consilience.engine.rounds import passing as rounds_passing
from consilience.engine.rounds.store import Store
from consilience.errors import UserError
from consilience.types import State

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, params=["memory", "disk"])
def place(request, monkeypatch):
    if request.param == "disk":
        monkeypatch.setattr("consilience.engine.rounds.store.HOST_BYTES", 0)


def initial(rows: np.ndarray) -> State:
    """Row r starts as r."""
    start = torch.from_numpy(rows).double()
    return {"trend": {"w": start[:, None].expand(-1, 3).clone(), "n": start.long()}, "none": {}}


def memories(*values: float) -> State:
    column = torch.tensor(values, dtype=torch.float64)
    return {"trend": {"w": column[:, None].expand(-1, 3).clone(), "n": column.long()}, "none": {}}


def store(rows: int = 10) -> Store:
    return Store(rows, initial, CPU)


@pytest.mark.parametrize("rows", [[3], [7, 0, 3], np.array([9, 1])])
def test_rows_are_initial_until_they_are_saved(rows):
    assert_close(store().load(rows), initial(np.asarray(rows)), rtol=0, atol=0)


def test_load_gives_what_was_saved_in_any_order_among_initial_rows():
    kept = store()
    kept.save([5, 2], memories(50, 20))
    assert_close(kept.load([2, 4, 5, 0]), memories(20, 4, 50, 0), rtol=0, atol=0)
    kept.save([4, 5], memories(40, 51))
    assert_close(kept.load([5, 4, 2, 1]), memories(51, 40, 20, 1), rtol=0, atol=0)


def test_memories_of_other_shapes_take_the_place_of_all_others():
    kept = store()
    kept.save([5, 2], memories(50, 20))
    wide = {"trend": {"w": torch.ones(2, 4, dtype=torch.float64), "n": torch.ones(2, dtype=torch.int64)}}
    kept.save([2, 3], {**wide, "none": {}})
    assert_close(kept.load([3, 2]), {**wide, "none": {}}, rtol=0, atol=0)
    assert_close(kept.load([5]), initial(np.array([5])), rtol=0, atol=0)
    other = store()
    other.restore(kept.snapshot())
    assert_close(other.load([3, 2]), {**wide, "none": {}}, rtol=0, atol=0)


def test_what_was_loaded_or_saved_is_a_copy():
    kept, saved = store(), memories(1, 2)
    kept.save([0, 1], saved)
    saved["trend"]["w"].zero_()
    kept.load([0, 1])["trend"]["w"].zero_()
    assert_close(kept.load([0, 1]), memories(1, 2), rtol=0, atol=0)


def test_snapshot_and_restore_are_inverses():
    kept, other = store(), store()
    kept.save([8, 3], memories(80, 30))
    snapshot = kept.snapshot()
    assert snapshot["rows"]["number"].tolist() == [3, 8]
    assert tree.nbytes(snapshot) == 2 * (8 + 3 * 8 + 8)  # only rows that exist
    other.restore(snapshot)
    everyone = list(range(10))
    assert_close(other.load(everyone), kept.load(everyone), rtol=0, atol=0)
    assert_close(other.snapshot(), snapshot, rtol=0, atol=0)
    kept.save([3], memories(31))
    assert_close(other.load([3]), memories(30), rtol=0, atol=0)


def test_an_untouched_store_has_an_empty_snapshot():
    other = store()
    other.restore(store().snapshot())
    assert_close(other.load([1, 2]), initial(np.array([1, 2])), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [[], [8, 3]])
def test_restoring_forgets_what_the_snapshot_does_not_hold(rows):
    kept, used = store(), store()
    kept.save(rows, memories(*(10.0 * row for row in rows)))
    used.save([3, 5], memories(-3, -5))
    used.restore(kept.snapshot())
    everyone = list(range(10))
    assert_close(used.load(everyone), kept.load(everyone), rtol=0, atol=0)
    assert used.snapshot()["rows"]["number"].tolist() == sorted(rows)


@pytest.mark.parametrize("empty", [{}, {"none": {}}])
def test_methods_without_memory_store_nothing(empty):
    kept = Store(10, lambda rows: empty, CPU)
    kept.save([1, 2], empty)
    assert kept.load([1, 2]) == empty
    assert tree.nbytes(kept.snapshot()) == 0


def test_saving_nobody_changes_nothing():
    kept = store()
    kept.save([], initial(np.arange(0)))
    assert_close(kept.load([1]), memories(1), rtol=0, atol=0)


def test_thousands_of_clients_of_whom_few_are_ever_seen():
    kept, random = store(5000), np.random.default_rng(0)
    written: dict[int, float] = {}
    for number in range(10):
        chosen = random.choice(5000, size=20, replace=False)
        values = [-1000.0 * number - row for row in chosen]
        kept.save(chosen, memories(*values))
        written |= dict(zip(chosen.tolist(), values, strict=True))
    everyone = random.permutation(5000)
    assert_close(kept.load(everyone), memories(*(written.get(row, row) for row in everyone)), rtol=0, atol=0)
    assert kept.snapshot()["rows"]["number"].tolist() == sorted(written)


def in_file(path: Path, resident: Resident = "never") -> Store:
    return Store(10, initial, CPU, resident=resident, path=path)


@pytest.mark.parametrize("resident", ["never", "always"])
def test_a_snapshot_of_a_named_file_says_where_rows_lie(tmp_path, resident):
    kept = in_file(tmp_path / "store")
    kept.save([8, 3], memories(80, 30))
    snapshot = kept.snapshot()
    kept.confirm()
    kept.save([3, 5], memories(31, 50))
    assert snapshot["memory.trend"]["w"].shape == (0, 3)
    other = in_file(tmp_path / "store", resident)
    other.restore(snapshot)
    assert_close(other.load([3, 5, 8]), memories(30, 5, 80), rtol=0, atol=0)


def test_rows_that_were_held_can_go_on_in_a_file(tmp_path):
    held, filed = in_file(tmp_path / "a", "always"), in_file(tmp_path / "b")
    held.save([8, 3], memories(80, 30))
    filed.restore(held.snapshot())
    assert_close(filed.load([3, 4, 8]), memories(30, 4, 80), rtol=0, atol=0)


def test_a_file_that_is_gone_is_one_line(tmp_path):
    kept = in_file(tmp_path / "store")
    kept.save([8], memories(80))
    snapshot = kept.snapshot()
    with pytest.raises(UserError, match="is missing"):
        in_file(tmp_path / "elsewhere").restore(snapshot)


def test_rows_of_another_form_get_a_file_of_their_own_until_they_are_confirmed(tmp_path):
    kept, wide = in_file(tmp_path / "store"), {"trend": {"w": torch.ones(1, 4, dtype=torch.float64)}}
    kept.save([8], memories(80))
    before = kept.snapshot()
    kept.confirm()
    kept.save([8], wide)
    other = in_file(tmp_path / "store")
    other.restore(before)
    assert_close(other.load([8]), memories(80), rtol=0, atol=0)
    for there in (["store.1", "store.2"], ["store.2"]):  # the checkpoint before the last counts on its own
        kept.snapshot()
        kept.confirm()
        assert sorted(one.name for one in tmp_path.iterdir()) == there


def fleeting_store(memory: int = 2**31) -> Store:
    """One in which `passing` goes with the round, and `trend` stays."""

    def both(rows: np.ndarray) -> State:
        return {**initial(rows), "passing": {"g": torch.zeros(len(rows), 2)}}

    return Store(10, both, CPU, memory, fleeting=frozenset({"passing"}))


def passing(*values: float) -> State:
    return {"passing": {"g": torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 2).clone()}}


@pytest.mark.parametrize("memory", [2**31, 0])
def test_what_passes_with_the_round_is_there_until_its_end_alone(memory):
    kept = fleeting_store(memory)
    kept.save([5, 2], {**memories(50, 20), **passing(5, 2)})
    kept.save([7], {**memories(70), **passing(7)})
    assert_close(kept.load([5, 2]), {**memories(50, 20), **passing(5, 2)}, rtol=0, atol=0)
    assert_close(kept.load([7, 3, 5]), {**memories(70, 3, 50), **passing(7, 0, 5)}, rtol=0, atol=0)
    kept.save([5], {**memories(51), **passing(6)})  # what was written last counts
    assert_close(kept.load([5, 2]), {**memories(51, 20), **passing(6, 2)}, rtol=0, atol=0)
    kept.save([5, 2], {**memories(52, 22), **passing(8, 9)})
    assert_close(kept.load([2, 5]), {**memories(22, 52), **passing(9, 8)}, rtol=0, atol=0)
    assert "passing" not in "".join(kept.snapshot())
    kept.end_round()
    assert_close(kept.load([5, 2, 7]), {**memories(52, 22, 70), **passing(0, 0, 0)}, rtol=0, atol=0)


def test_where_all_passes_with_the_round_a_checkpoint_is_empty():
    kept = Store(10, lambda rows: passing(*[0] * len(rows)), CPU, fleeting=frozenset({"passing"}))
    for value in (1, 2):
        kept.save([4], passing(value))
        assert_close(kept.load([4]), passing(value), rtol=0, atol=0)
        assert tree.nbytes(kept.snapshot()) == 0
        kept.end_round()
    assert_close(kept.load([4]), passing(0), rtol=0, atol=0)


def test_what_passes_with_the_round_stays_on_a_gpu_while_it_takes_little(monkeypatch):
    moved: list[int] = []
    monkeypatch.setattr(rounds_passing, "_to_host", lambda value: moved.append(value.nbytes) or value)
    kept = rounds_passing.Passing(torch.device("cuda"), 20)  # without a number, as configurations say it
    for row in range(4):
        kept.save(np.array([row]), passing(row))
    assert moved == [8, 8]
    kept.save(np.array([0]), passing(5))  # in place of what there was
    assert moved == [8, 8]
    kept.clear()
    kept.save(np.array([7]), passing(7))
    assert moved == [8, 8]


def test_nobody_else_is_trusted_with_what_has_passed():
    kept = fleeting_store()
    kept.save([5, 2], {**memories(50, 20), **passing(5, 2)}, marks=[3, 4])
    assert kept.marks(np.array([5, 2, 7])) == (3, 4, 0)
    kept.end_round()
    assert kept.marks(np.array([5, 2])) == (0, 0)


@pytest.mark.parametrize("resident", ["always", "never"])
def test_a_snapshot_with_what_has_passed_is_read_without(tmp_path, resident):
    """Checkpoints of before had all of it."""
    before = Store(10, initial, CPU, resident="never", path=tmp_path / "memories")
    before.save([5, 2], memories(50, 20))
    after = Store(
        10, initial, CPU, resident=resident, path=tmp_path / "memories", fleeting=frozenset({"trend"})
    )
    after.restore(before.snapshot())
    assert_close(after.load([5, 2]), initial(np.array([5, 2])), rtol=0, atol=0)
