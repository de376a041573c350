"""MNIST, Fashion-MNIST and EMNIST: images and labels in IDX files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from consilience.data import Dataset, load
from consilience.data.sets import find
from consilience.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
TEST_PIXELS = np.random.default_rng(1).integers(0, 256, (3, 28, 28), dtype=np.uint8)
NAMES = find("mnist").members


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def idx_files(folder: str, names: tuple[str, ...], first: int = 0) -> dict[str, bytes]:
    labels = np.arange(first, first + 10, dtype=np.uint8)
    arrays = (PIXELS, labels[: len(PIXELS)], TEST_PIXELS, labels[: len(TEST_PIXELS)])
    return {f"{folder}/{name}": idx(array) for name, array in zip(names, arrays, strict=True)}


def compressed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


MNIST = idx_files("mnist", NAMES)
LETTERS = compressed(idx_files("gzip", find("emnist-letters").members, first=1))
LAYOUTS: dict[str, tuple[str, dict[str, object]]] = {
    "mnist plain": ("mnist", MNIST),
    "fashion gz": ("fashion-mnist", compressed(idx_files("fashion-mnist", NAMES))),
    "emnist gz": ("emnist-digits", compressed(idx_files("emnist", find("emnist-digits").members))),
    "emnist zip": ("emnist-letters", {"emnist/gzip.zip": LETTERS}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads(layout: str, loaded: Callable[..., Dataset], tmp_path: Path):
    loaded(*LAYOUTS[layout], tmp_path)


def test_mnist_keeps_pixels_and_labels(loaded: Callable[..., Dataset], tmp_path: Path):
    dataset = loaded("mnist", MNIST, tmp_path)
    np.testing.assert_array_equal(dataset.inputs[:, 0], PIXELS)
    np.testing.assert_array_equal(dataset.test_inputs[:, 0], TEST_PIXELS)
    assert dataset.targets.tolist() == [0, 1, 2, 3, 4, 5]


def test_emnist_is_turned_upright_and_letters_count_from_zero(loaded: Callable[..., Dataset], tmp_path: Path):
    dataset = loaded(*LAYOUTS["emnist zip"], tmp_path)
    np.testing.assert_array_equal(dataset.inputs[:, 0], PIXELS.transpose(0, 2, 1))
    assert dataset.test_targets.tolist() == [0, 1, 2]


IMAGES, LABELS = f"mnist/{NAMES[0]}", f"mnist/{NAMES[1]}"

# Layout, the file to replace, its damaged content as a function of the right one, a part of the reason.
DAMAGES: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    ("mnist plain", IMAGES, lambda right: right[:-1], "4719 bytes, expected 4720"),
    ("mnist plain", IMAGES, lambda right: right + b"!", "4721 bytes, expected 4720"),
    ("mnist plain", IMAGES, lambda right: b"\x00\x00\x09\x03" + right[4:], "starts with 00000903"),
    ("mnist plain", IMAGES, lambda right: right[:6], "6 bytes"),
    ("mnist plain", IMAGES, lambda right: b"", "starts with nothing"),
    ("mnist plain", IMAGES, lambda right: idx(PIXELS[:, :, 1:]), "27), expected (6, 1, 28, 28)"),
    ("mnist plain", LABELS, lambda right: idx(np.zeros(5, np.uint8)), "5 labels for 6 images"),
    ("mnist plain", LABELS, lambda right: right[:-1] + b"\x0a", "labels go from 0 to 10, expected 0 to 9"),
    ("fashion gz", f"fashion-{IMAGES}.gz", lambda right: right[:-20], "end-of-stream"),
    ("fashion gz", f"fashion-{IMAGES}.gz", lambda right: b"<html>", "gzipped"),
    ("fashion gz", f"fashion-{IMAGES}.gz", lambda right: right[:99] + b"????" + right[103:], ""),
    ("emnist zip", "emnist/gzip.zip", lambda right: right[:-50], "zip"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "file", "damage", "reason"), DAMAGES, ids=[f"{case[0]}: {case[3]}" for case in DAMAGES]
)
def test_damage_is_one_line_that_names_the_file(
    layout: str, file: str, damage: Callable[[bytes], bytes], reason: str, check_damage: Callable[..., None]
):
    check_damage(*LAYOUTS[layout], file, damage, reason)


@pytest.mark.parametrize(
    ("layout", "file", "expected"),
    [
        ("mnist plain", IMAGES, [f"{IMAGES}.gz"]),
        ("fashion gz", f"fashion-{LABELS}.gz", [f"fashion-{LABELS}.gz"]),
        ("emnist zip", "emnist/gzip.zip", ["emnist/emnist-letters-train-images", "emnist/gzip.zip"]),
    ],
)
def test_a_missing_file_is_one_line_that_names_it(
    layout: str, file: str, expected: list[str], check_missing: Callable[..., None]
):
    check_missing(*LAYOUTS[layout], file, expected)


def test_an_archive_without_a_member_names_it(check_member: Callable[..., None]):
    check_member("emnist-digits", "emnist/gzip.zip", {"gzip/x": b""}, find("emnist-digits").members[0])


def test_published_numbers_of_rows_are_insisted_on(put: Callable[..., None], tmp_path: Path):
    put(tmp_path, MNIST)
    with pytest.raises(UserError, match=r"\(6, 1, 28, 28\), expected \(60000, 1, 28, 28\)"):
        load("mnist", tmp_path)
