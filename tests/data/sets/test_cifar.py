"""CIFAR-10 and CIFAR-100: rows of label bytes and pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from consilience.data import Dataset
from consilience.data.sets import find


def cifar_rows(rows: int, label_bytes: int, seed: int) -> np.ndarray:
    generated = np.random.default_rng(seed).integers(0, 256, (rows, label_bytes + 3072), dtype=np.uint8)
    generated[:, : label_bytes - 1] = 19
    generated[:, label_bytes - 1] = np.arange(rows)
    return generated


CIFAR10 = {
    # The first batch has two rows, the others one each: six in all.
    f"cifar-10-batches-bin/{name}": cifar_rows(count, 1, seed).tobytes()
    for seed, (name, count) in enumerate(zip(find("cifar10").members, (2, 1, 1, 1, 1, 3), strict=True))
}
CIFAR100 = {
    "cifar-100-binary/train.bin": cifar_rows(6, 2, 0).tobytes(),
    "cifar-100-binary/test.bin": cifar_rows(3, 2, 1).tobytes(),
}
LAYOUTS: dict[str, tuple[str, dict[str, object]]] = {
    "cifar10 folder": ("cifar10", CIFAR10),
    "cifar10 tar": ("cifar10", {"cifar-10-binary.tar.gz": CIFAR10}),
    "cifar100 folder": ("cifar100", CIFAR100),
    "cifar100 tar": ("cifar100", {"cifar-100-binary.tar.gz": CIFAR100}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads(layout: str, loaded: Callable[..., Dataset], tmp_path: Path):
    loaded(*LAYOUTS[layout], tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_archive_and_its_folder_hold_the_same(name: str, loaded: Callable[..., Dataset], tmp_path: Path):
    folder = loaded(*LAYOUTS[f"{name} folder"], tmp_path / "a")
    assert loaded(*LAYOUTS[f"{name} tar"], tmp_path / "b").digest() == folder.digest()


def test_cifar_planes_and_labels(loaded: Callable[..., Dataset], tmp_path: Path):
    dataset = loaded("cifar10", CIFAR10, tmp_path)
    assert dataset.targets.tolist() == [0, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(dataset.inputs[1].flatten(), cifar_rows(2, 1, 0)[1, 1:])
    fine = loaded("cifar100", CIFAR100, tmp_path)
    assert fine.targets.tolist() == [0, 1, 2, 3, 4, 5]  # not the coarse 19


def test_an_incomplete_folder_gives_way_to_the_archive(
    put: Callable[..., None], loaded: Callable[..., Dataset], tmp_path: Path
):
    put(tmp_path, {"cifar-10-batches-bin/data_batch_1.bin": b"half"})
    assert len(loaded(*LAYOUTS["cifar10 tar"], tmp_path).inputs) == 6


BATCH = "cifar-10-batches-bin/data_batch_2.bin"

# Layout, the file to replace, its damaged content as a function of the right one, a part of the reason.
DAMAGES: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    ("cifar10 folder", BATCH, lambda right: right[:-1], "rows of 3073"),
    ("cifar10 folder", BATCH, lambda right: b"", "0 bytes"),
    ("cifar10 folder", BATCH, lambda right: b"\x0b" + right[1:], "labels go from 11 to 11"),
    ("cifar10 folder", BATCH, lambda right: 2 * right, "(7, 3, 32, 32), expected (6"),
    ("cifar10 tar", "cifar-10-binary.tar.gz", lambda right: right[: len(right) // 2], ""),
    ("cifar100 tar", "cifar-100-binary.tar.gz", lambda right: b"<html>", "gzip"),
]


@pytest.mark.parametrize(
    ("layout", "file", "damage", "reason"), DAMAGES, ids=[f"{case[0]}: {case[3]}" for case in DAMAGES]
)
def test_damage_is_one_line_that_names_the_file(
    layout: str, file: str, damage: Callable[[bytes], bytes], reason: str, check_damage: Callable[..., None]
):
    check_damage(*LAYOUTS[layout], file, damage, reason)


def test_a_missing_file_is_one_line_that_names_it(check_missing: Callable[..., None]):
    file = "cifar-10-batches-bin/test_batch.bin"
    check_missing("cifar10", CIFAR10, file, ["bin/test_batch.bin", "cifar-10-binary.tar.gz"])


def test_an_archive_without_a_member_names_it(check_member: Callable[..., None]):
    check_member("cifar100", "cifar-100-binary.tar.gz", {"cifar-100-binary/test.bin": b""}, "train.bin")
