"""FEMNIST: LEAF's files, or the same rows packed in one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from consilience.data import Dataset, load
from consilience.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)


def leaf(users: dict[str, list[int]], level: float = 1.0) -> bytes:
    data = {user: {"x": [[level] * 784 for _ in labels], "y": labels} for user, labels in users.items()}
    counts = [len(labels) for labels in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": data}).encode()


def femnist_packed(**changes: np.ndarray) -> bytes:
    arrays = {
        "x": PIXELS,
        "y": np.arange(9, dtype=np.uint8),
        "writer": np.array([0, 0, 1, 1, 1, 2, 2, 2, 2], np.int16),
        "is_test": np.array([0, 1, 0, 0, 1, 0, 0, 0, 1], bool),
        "writer_ids": np.array(["a", "b", "c"]),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, **changes})
    return buffer.getvalue()


LAYOUTS: dict[str, dict[str, bytes]] = {
    "femnist npz": {"femnist/femnist-3w.npz": femnist_packed()},
    "femnist npz on top": {"femnist-3w.npz": femnist_packed()},
    "femnist leaf": {
        "femnist/train/a_0.json": leaf({"w7": [1, 2], "w3": [61]}),
        "femnist/train/a_1.json": leaf({"w5": [0, 5, 6]}, level=0.4),
        "femnist/test/a_0.json": leaf({"w3": [3], "w7": [4, 5]}, level=0.0),
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads(layout: str, loaded: Callable[..., Dataset], tmp_path: Path):
    loaded("femnist", LAYOUTS[layout], tmp_path)


def test_femnist_writers(loaded: Callable[..., Dataset], tmp_path: Path):
    packed = loaded("femnist", LAYOUTS["femnist npz"], tmp_path / "npz")
    np.testing.assert_array_equal(packed.inputs[1, 0], PIXELS[2])
    assert packed.targets.tolist() == [0, 2, 3, 5, 6, 7]
    assert packed.groups.tolist() == [0, 1, 1, 2, 2, 2]
    assert packed.test_groups.tolist() == [0, 1, 2]
    unpacked = loaded("femnist", LAYOUTS["femnist leaf"], tmp_path / "leaf")
    assert unpacked.targets.tolist() == [1, 2, 61, 0, 5, 6]
    assert unpacked.groups.tolist() == [0, 0, 1, 2, 2, 2]
    assert unpacked.test_groups.tolist() == [1, 0, 0]
    assert unpacked.inputs[:, 0, 0, 0].tolist() == [255] * 3 + [102] * 3  # white stays white


def test_two_packed_femnist_files_are_refused(put: Callable[..., None], tmp_path: Path):
    put(tmp_path, {"femnist/femnist-1w.npz": b"", "femnist/femnist-2w.npz": b""})
    with pytest.raises(UserError, match=r"2 packed files \(femnist-1w.npz, femnist-2w.npz\); keep one"):
        load("femnist", tmp_path)


PACKED, LEAF = "femnist/femnist-3w.npz", "femnist/train/a_1.json"

# Layout, the file to replace, its damaged content as a function of the right one, a part of the reason.
DAMAGES: list[tuple[str, str, Callable[[bytes], bytes | dict[str, bytes]], str]] = [
    ("femnist npz", PACKED, lambda right: right[:-30], ""),
    ("femnist npz", PACKED, lambda right: femnist_packed(y=np.full(9, 62)), "to 62, expected 0 to 61"),
    ("femnist npz", PACKED, lambda right: femnist_packed(writer=np.zeros(8)), "8 writers"),
    ("femnist npz", PACKED, lambda right: femnist_packed(x=np.zeros((9, 784))), "float64 (9, 784)"),
    ("femnist npz", PACKED, lambda right: {"y.npy": b""}, "lacks"),
    ("femnist npz", PACKED, lambda right: femnist_packed(y=np.array([{}] * 9)), "objects"),
    ("femnist leaf", LEAF, lambda right: right[:-9], "Expecting value"),
    ("femnist leaf", LEAF, lambda right: b"[]", "list indices"),
    ("femnist leaf", LEAF, lambda right: right.replace(b"[3]", b"[4]"), "expected 4 rows of 784"),
    ("femnist leaf", LEAF, lambda right: leaf({"w": [1]}, level=1.5), "outside [0, 1]"),
    ("femnist leaf", "femnist/test/a_0.json", lambda right: leaf({"w": [62]}), "from 62 to 62"),
]


@pytest.mark.parametrize(
    ("layout", "file", "damage", "reason"), DAMAGES, ids=[f"{case[0]}: {case[3]}" for case in DAMAGES]
)
def test_damage_is_one_line_that_names_the_file(
    layout: str,
    file: str,
    damage: Callable[[bytes], bytes | dict[str, bytes]],
    reason: str,
    check_damage: Callable[..., None],
):
    check_damage("femnist", LAYOUTS[layout], file, damage, reason)


@pytest.mark.parametrize(
    ("layout", "file", "expected"),
    [
        ("femnist npz", "femnist/femnist-3w.npz", ["femnist/femnist-*.npz", "femnist/train/*.json"]),
        ("femnist leaf", "femnist/test/a_0.json", ["femnist/test/*.json"]),
    ],
)
def test_a_missing_file_is_one_line_that_names_it(
    layout: str, file: str, expected: list[str], check_missing: Callable[..., None]
):
    check_missing("femnist", LAYOUTS[layout], file, expected)


def test_letters_share_a_class_with_their_capitals_and_digits_are_left_out(
    put: Callable[..., None], tmp_path: Path
):
    labels = np.array([9, 10, 36, 35, 61, 0, 11, 37, 12], np.uint8)  # 9, A, a, Z, z, 0, B, b, C
    put(tmp_path, {PACKED: femnist_packed(y=labels)})
    letters = load("femnist-letters", tmp_path)
    assert (letters.outputs, letters.targets.tolist()) == (26, [0, 25, 1, 1])
    assert letters.test_targets.tolist() == [0, 25, 2]
    np.testing.assert_array_equal(letters.inputs[0, 0], PIXELS[2])
    assert letters.groups.tolist() == [1, 1, 2, 2]
    assert letters.test_groups.tolist() == [0, 1, 2]
