from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from consilience.data import Dataset, load, normalisation
from consilience.data.sets import Source, data_directory, find
from consilience.data.sets.tiny_imagenet import CACHE
from consilience.errors import UserError

TRAIN, TEST = 6, 3
IDX_NAMES = find("mnist").members


def source_of(name: str) -> Source:
    """The published description of a data set, with the few rows written here."""
    return replace(find(name), training_rows=TRAIN, test_rows=TEST)


def pixels(rows: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def put(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def packed_zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def packed_tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def idx_files(folder: str, names: tuple[str, ...], first: int = 0) -> dict[str, bytes]:
    labels = np.arange(first, first + 10, dtype=np.uint8)
    arrays = (pixels(TRAIN, 28, 28), labels[:TRAIN], pixels(TEST, 28, 28, seed=1), labels[:TEST])
    return {f"{folder}/{name}": idx(array) for name, array in zip(names, arrays, strict=True)}


def compressed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def cifar_rows(rows: int, label_bytes: int, seed: int) -> bytes:
    generated = pixels(rows, label_bytes + 3072, seed=seed)
    generated[:, : label_bytes - 1] = 19
    generated[:, label_bytes - 1] = np.arange(rows)
    return generated.tobytes()


def cifar10_files() -> dict[str, bytes]:
    names = find("cifar10").members
    # The first batch has two rows, the others one each: six in all.
    counts = (2, 1, 1, 1, 1, TEST)
    return {
        f"cifar-10-batches-bin/{name}": cifar_rows(count, 1, seed)
        for seed, (name, count) in enumerate(zip(names, counts, strict=True))
    }


def cifar100_files() -> dict[str, bytes]:
    return {
        "cifar-100-binary/train.bin": cifar_rows(TRAIN, 2, 0),
        "cifar-100-binary/test.bin": cifar_rows(TEST, 2, 1),
    }


def jpeg(mode: str, colour: object, size: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (size, size), colour).save(buffer, "JPEG")
    return buffer.getvalue()


WNIDS = ("n02", "n01", "n03")  # not sorted, as published


def tiny_files() -> dict[str, bytes]:
    files = {
        "wnids.txt": "\n".join(WNIDS).encode(),
        "val/val_annotations.txt": b"val_0.JPEG\tn03\t0\t0\nval_1.JPEG\tn02\t0\t0\nval_2.JPEG\tn01\t0\t0\n",
    }
    for number, wnid in enumerate(WNIDS):
        files[f"val/images/val_{number}.JPEG"] = jpeg("RGB", (0, 0, 250))
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        files[f"train/{wnid}/images/{wnid}_0.JPEG"] = jpeg("L", 40 * number)
        files[f"train/{wnid}/images/{wnid}_1.JPEG"] = jpeg("RGB", (250, 0, 0))
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}


def leaf(users: dict[str, list[int]], level: float = 1.0) -> bytes:
    data = {user: {"x": [[level] * 784 for _ in labels], "y": labels} for user, labels in users.items()}
    counts = [len(labels) for labels in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": data}).encode()


def leaf_files() -> dict[str, bytes]:
    return {
        "femnist/train/a_0.json": leaf({"w7": [1, 2], "w3": [61]}),
        "femnist/train/a_1.json": leaf({"w5": [0, 5, 6]}, level=0.4),
        "femnist/test/a_0.json": leaf({"w3": [3], "w7": [4, 5]}, level=0.0),
    }


def femnist_packed(**changes: np.ndarray) -> bytes:
    arrays = {
        "x": pixels(9, 28, 28),
        "y": np.arange(9, dtype=np.uint8),
        "writer": np.array([0, 0, 1, 1, 1, 2, 2, 2, 2], np.int16),
        "is_test": np.array([0, 1, 0, 0, 1, 0, 0, 0, 1], bool),
        "writer_ids": np.array(["a", "b", "c"]),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, **changes})
    return buffer.getvalue()


def emnist_files(split: str, first: int = 0) -> dict[str, bytes]:
    return idx_files("emnist", find(f"emnist-{split}").members, first)


def inside_zip(files: dict[str, bytes], folder: str, inside: str) -> bytes:
    return packed_zip(
        {f"{inside}/{name.removeprefix(f'{folder}/')}": content for name, content in files.items()}
    )


LAYOUTS: dict[str, tuple[str, Callable[[], dict[str, bytes]]]] = {
    "mnist plain": ("mnist", lambda: idx_files("mnist", IDX_NAMES)),
    "fashion gz": ("fashion-mnist", lambda: compressed(idx_files("fashion-mnist", IDX_NAMES))),
    "emnist gz": ("emnist-digits", lambda: compressed(emnist_files("digits"))),
    "emnist zip": (
        "emnist-letters",
        lambda: {
            "emnist/gzip.zip": inside_zip(compressed(emnist_files("letters", first=1)), "emnist", "gzip")
        },
    ),
    "cifar10 folder": ("cifar10", cifar10_files),
    "cifar10 tar": ("cifar10", lambda: {"cifar-10-binary.tar.gz": packed_tar(cifar10_files())}),
    "cifar100 folder": ("cifar100", cifar100_files),
    "cifar100 tar": ("cifar100", lambda: {"cifar-100-binary.tar.gz": packed_tar(cifar100_files())}),
    "tiny folder": ("tiny-imagenet", tiny_files),
    "tiny zip": ("tiny-imagenet", lambda: {"tiny-imagenet-200.zip": packed_zip(tiny_files())}),
    "femnist npz": ("femnist", lambda: {"femnist/femnist-3w.npz": femnist_packed()}),
    "femnist npz on top": ("femnist", lambda: {"femnist-3w.npz": femnist_packed()}),
    "femnist leaf": ("femnist", leaf_files),
}


def loaded(layout: str, root: Path) -> Dataset:
    name, files = LAYOUTS[layout]
    put(root, files())
    return source_of(name).read(root)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads(layout: str, tmp_path: Path):
    dataset = loaded(layout, tmp_path)
    source = find(LAYOUTS[layout][0])
    assert (dataset.name, dataset.shape, dataset.classes) == (source.name, source.shape, source.classes)
    assert (len(dataset.inputs), len(dataset.test_inputs)) == (TRAIN, TEST)
    assert dataset.inputs.dtype == torch.uint8


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny"])
def test_an_archive_and_its_folder_hold_the_same(name: str, tmp_path: Path):
    archive = "zip" if name == "tiny" else "tar"
    folder, packed = loaded(f"{name} folder", tmp_path / "a"), loaded(f"{name} {archive}", tmp_path / "b")
    assert folder.digest() == packed.digest()


def test_mnist_keeps_pixels_and_labels(tmp_path: Path):
    dataset = loaded("mnist plain", tmp_path)
    np.testing.assert_array_equal(dataset.inputs[:, 0], pixels(TRAIN, 28, 28))
    np.testing.assert_array_equal(dataset.test_inputs[:, 0], pixels(TEST, 28, 28, seed=1))
    assert dataset.targets.tolist() == [0, 1, 2, 3, 4, 5]


def test_emnist_is_turned_upright_and_letters_count_from_zero(tmp_path: Path):
    dataset = loaded("emnist zip", tmp_path)
    np.testing.assert_array_equal(dataset.inputs[:, 0], pixels(TRAIN, 28, 28).transpose(0, 2, 1))
    assert dataset.test_targets.tolist() == [0, 1, 2]


def test_cifar_planes_and_labels(tmp_path: Path):
    dataset = loaded("cifar10 folder", tmp_path)
    assert dataset.targets.tolist() == [0, 1, 0, 0, 0, 0]
    np.testing.assert_array_equal(dataset.inputs[1].flatten(), pixels(2, 3073)[1, 1:])
    assert loaded("cifar100 folder", tmp_path).targets.tolist() == [0, 1, 2, 3, 4, 5]  # not the coarse 19


def test_tiny_imagenet_order_and_colours(tmp_path: Path):
    dataset = loaded("tiny zip", tmp_path)
    assert dataset.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test_targets.tolist() == [2, 0, 1]
    means = dataset.inputs.double().mean((2, 3))
    expected = [[0, 0, 0], [250, 0, 0], [40, 40, 40], [250, 0, 0], [80, 80, 80], [250, 0, 0]]
    assert (means - torch.tensor(expected)).abs().max() < 5  # JPEG is lossy


def test_tiny_imagenet_is_decoded_once(tmp_path: Path):
    first = loaded("tiny zip", tmp_path)
    (tmp_path / "tiny-imagenet-200.zip").unlink()
    assert [path.name for path in tmp_path.iterdir()] == [CACHE]
    assert source_of("tiny-imagenet").read(tmp_path).digest() == first.digest()
    (tmp_path / CACHE).write_bytes(b"PK")
    with pytest.raises(UserError, match=rf"{CACHE} is damaged"):
        source_of("tiny-imagenet").read(tmp_path)


def test_tiny_imagenet_with_missing_images_is_not_cached(tmp_path: Path):
    put(tmp_path, tiny_files())
    (tmp_path / "tiny-imagenet-200/train/n01/images/n01_0.JPEG").unlink()
    with pytest.raises(UserError, match=r"tiny-imagenet-200 is damaged .*\(5, 3, 64, 64\), expected \(6, 3"):
        source_of("tiny-imagenet").read(tmp_path)
    assert not (tmp_path / CACHE).exists()


def test_tiny_imagenet_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path, tiny_files())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match="pip install pillow"):
        source_of("tiny-imagenet").read(tmp_path)


def test_femnist_writers(tmp_path: Path):
    packed = loaded("femnist npz", tmp_path / "npz")
    np.testing.assert_array_equal(packed.inputs[1, 0], pixels(9, 28, 28)[2])
    assert packed.targets.tolist() == [0, 2, 3, 5, 6, 7]
    assert packed.groups.tolist() == [0, 1, 1, 2, 2, 2]
    assert packed.test_groups.tolist() == [0, 1, 2]
    unpacked = loaded("femnist leaf", tmp_path / "leaf")
    assert unpacked.targets.tolist() == [1, 2, 61, 0, 5, 6]
    assert unpacked.groups.tolist() == [0, 0, 1, 2, 2, 2]
    assert unpacked.test_groups.tolist() == [1, 0, 0]
    assert unpacked.inputs[:, 0, 0, 0].tolist() == [255] * 3 + [102] * 3  # white stays white


def test_two_packed_femnist_files_are_refused(tmp_path: Path):
    put(tmp_path, {"femnist/femnist-1w.npz": b"", "femnist/femnist-2w.npz": b""})
    with pytest.raises(UserError, match=r"2 packed files \(femnist-1w.npz, femnist-2w.npz\); keep one"):
        load("femnist", tmp_path)


IMAGES, LABELS = f"mnist/{IDX_NAMES[0]}", f"mnist/{IDX_NAMES[1]}"
ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"
BATCH = "cifar-10-batches-bin/data_batch_2.bin"
PACKED, LEAF = "femnist/femnist-3w.npz", "femnist/train/a_1.json"
PICTURE = "tiny-imagenet-200/train/n01/images/n01_1.JPEG"

# Layout, the file to replace, its damaged content as a function of the right one, a part of the reason.
DAMAGES: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    ("mnist plain", IMAGES, lambda right: right[:-1], "4719 bytes, expected 4720"),
    ("mnist plain", IMAGES, lambda right: right + b"!", "4721 bytes, expected 4720"),
    ("mnist plain", IMAGES, lambda right: b"\x00\x00\x09\x03" + right[4:], "starts with 00000903"),
    ("mnist plain", IMAGES, lambda right: right[:6], "6 bytes"),
    ("mnist plain", IMAGES, lambda right: b"", "starts with nothing"),
    ("mnist plain", IMAGES, lambda right: idx(pixels(TRAIN, 28, 29)), "29), expected (6, 1, 28, 28)"),
    ("mnist plain", LABELS, lambda right: idx(np.zeros(5, np.uint8)), "5 labels for 6 images"),
    ("mnist plain", LABELS, lambda right: right[:-1] + b"\x0a", "labels go from 0 to 10, expected 0 to 9"),
    ("fashion gz", f"fashion-{IMAGES}.gz", lambda right: right[:-20], "end-of-stream"),
    ("fashion gz", f"fashion-{IMAGES}.gz", lambda right: b"<html>", "gzipped"),
    ("fashion gz", f"fashion-{IMAGES}.gz", lambda right: right[:99] + b"????" + right[103:], ""),
    ("emnist zip", "emnist/gzip.zip", lambda right: right[:-50], "zip"),
    ("cifar10 folder", BATCH, lambda right: right[:-1], "rows of 3073"),
    ("cifar10 folder", BATCH, lambda right: b"", "0 bytes"),
    ("cifar10 folder", BATCH, lambda right: b"\x0b" + right[1:], "labels go from 11 to 11"),
    ("cifar10 folder", BATCH, lambda right: 2 * right, "(7, 3, 32, 32), expected (6"),
    ("cifar10 tar", "cifar-10-binary.tar.gz", lambda right: right[: len(right) // 2], ""),
    ("cifar100 tar", "cifar-100-binary.tar.gz", lambda right: b"<html>", "gzip"),
    ("tiny folder", ANNOTATIONS, lambda right: right.replace(b"n03", b"n99"), "lacks 'n99'"),
    ("tiny folder", ANNOTATIONS, lambda right: b"val_0.JPEG", "unpack"),
    ("tiny folder", PICTURE, lambda right: right[:200], ""),
    ("tiny folder", PICTURE, lambda right: jpeg("RGB", 0, size=32), "(3, 32, 32), expected (3, 64, 64)"),
    ("femnist npz", PACKED, lambda right: right[:-30], ""),
    ("femnist npz", PACKED, lambda right: femnist_packed(y=np.full(9, 62)), "to 62, expected 0 to 61"),
    ("femnist npz", PACKED, lambda right: femnist_packed(writer=np.zeros(8)), "8 writers"),
    ("femnist npz", PACKED, lambda right: femnist_packed(x=np.zeros((9, 784))), "float64 (9, 784)"),
    ("femnist npz", PACKED, lambda right: packed_zip({"y.npy": b""}), "lacks"),
    ("femnist npz", PACKED, lambda right: femnist_packed(y=np.array([{}] * 9)), "allow_pickle=False"),
    ("femnist leaf", LEAF, lambda right: right[:-9], "Expecting value"),
    ("femnist leaf", LEAF, lambda right: b"[]", "list indices"),
    ("femnist leaf", LEAF, lambda right: right.replace(b"[3]", b"[4]"), "expected 4 rows of 784"),
    ("femnist leaf", LEAF, lambda right: leaf({"w": [1]}, level=1.5), "outside [0, 1]"),
    ("femnist leaf", "femnist/test/a_0.json", lambda right: leaf({"w": [62]}), "from 62 to 62"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "file", "damage", "reason"), DAMAGES, ids=[f"{case[0]}: {case[3]}" for case in DAMAGES]
)
def test_damage_is_one_line_that_names_the_file(
    layout: str, file: str, damage: Callable[[bytes], bytes], reason: str, tmp_path: Path
):
    name, files = LAYOUTS[layout]
    contents = files()
    put(tmp_path, {**contents, file: damage(contents[file])})
    with pytest.raises(UserError) as caught:
        source_of(name).read(tmp_path)
    line = str(caught.value)
    # A wrong number of rows is found when all files are read: then the folder is named.
    blamed = Path(file).parts[0] if "expected (6" in reason else file
    assert str(tmp_path / blamed) in line
    assert reason in line
    assert f"`consilience data get {name}`" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("layout", "file", "expected"),
    [
        ("mnist plain", IMAGES, [f"{IMAGES}.gz"]),
        ("fashion gz", f"fashion-{LABELS}.gz", [f"fashion-{LABELS}.gz"]),
        ("emnist zip", "emnist/gzip.zip", ["emnist/emnist-letters-train-images", "emnist/gzip.zip"]),
        (
            "cifar10 folder",
            "cifar-10-batches-bin/test_batch.bin",
            ["bin/test_batch.bin", "cifar-10-binary.tar.gz"],
        ),
        (
            "tiny folder",
            "tiny-imagenet-200/wnids.txt",
            ["tiny-imagenet-200/wnids.txt", "tiny-imagenet-200.zip"],
        ),
        ("femnist npz", "femnist/femnist-3w.npz", ["femnist/femnist-*.npz", "femnist/train/*.json"]),
        ("femnist leaf", "femnist/test/a_0.json", ["femnist/test/*.json"]),
    ],
)
def test_a_missing_file_is_one_line_that_names_it(
    layout: str, file: str, expected: list[str], tmp_path: Path
):
    name, files = LAYOUTS[layout]
    put(tmp_path, {path: content for path, content in files().items() if path != file})
    with pytest.raises(UserError, match=f"run `consilience data get {name}`$") as caught:
        load(name, tmp_path)
    assert all(part in str(caught.value) for part in [str(tmp_path), *expected])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "member", "content"),
    [
        ("cifar100", "cifar-100-binary.tar.gz/train.bin", packed_tar({"cifar-100-binary/test.bin": b""})),
        ("emnist-digits", f"emnist/gzip.zip/{find('emnist-digits').members[0]}", packed_zip({"gzip/x": b""})),
    ],
)
def test_an_archive_without_a_member_names_it(name: str, member: str, content: bytes, tmp_path: Path):
    put(tmp_path, {str(Path(member).parent): content})
    with pytest.raises(UserError, match=re.escape(f"expected {tmp_path / member}; run")):
        source_of(name).read(tmp_path)


def test_an_incomplete_folder_gives_way_to_the_archive(tmp_path: Path):
    put(tmp_path, {"cifar-10-batches-bin/data_batch_1.bin": b"half"})
    assert len(loaded("cifar10 tar", tmp_path).inputs) == TRAIN


def test_published_numbers_of_rows_are_insisted_on(tmp_path: Path):
    put(tmp_path, idx_files("mnist", IDX_NAMES))
    with pytest.raises(UserError, match=r"\(6, 1, 28, 28\), expected \(60000, 1, 28, 28\)"):
        load("mnist", tmp_path)


def test_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONSILIENCE_DATA", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory() == tmp_path / "data"
    assert data_directory(Path("here")) == Path("here")
    monkeypatch.setenv("CONSILIENCE_DATA", "")
    assert data_directory().name == "consilience"


SHARED = Path(__file__).parents[2].parent / "shared" / "data"
REAL = Path(os.environ.get("CONSILIENCE_DATA") or SHARED)

# Published or well-known statistics of the training images, and sizes.
PUBLISHED = {
    "mnist": (60_000, 10_000, 0.1307, 0.3081),
    "fashion-mnist": (60_000, 10_000, 0.2860, 0.3530),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_files(name: str):
    if not (REAL / name).is_dir():
        pytest.skip(f"{name} is not in the data directory")
    rows, test_rows, mean, deviation = PUBLISHED[name]
    dataset = load(name, REAL)
    assert (len(dataset.inputs), len(dataset.test_inputs)) == (rows, test_rows)
    shift, scale = normalisation(dataset, "standard")
    assert (shift.item() / 255, scale.item() / 255) == pytest.approx((mean, deviation), abs=1e-4)


def test_the_sample_is_a_part_of_mnist():
    if not (REAL / "mnist").is_dir():
        pytest.skip("mnist is not in the data directory")
    whole, sample = load("mnist", REAL), load("mnist-sample")

    def rows(inputs: torch.Tensor, targets: torch.Tensor) -> set[bytes]:
        return {
            image.tobytes() + bytes([label])
            for image, label in zip(inputs.numpy(), targets.tolist(), strict=True)
        }

    assert rows(sample.inputs, sample.targets) < rows(whole.inputs, whole.targets)
    assert rows(sample.test_inputs, sample.test_targets) < rows(whole.test_inputs, whole.test_targets)


def test_the_real_femnist():
    if not list(REAL.glob("femnist-*.npz")) and not list((REAL / "femnist").glob("femnist-*.npz")):
        pytest.skip("no femnist-*.npz in the data directory")
    dataset = load("femnist", REAL)
    assert (dataset.shape, dataset.classes) == ((1, 28, 28), 62)
    assert dataset.groups is not None
    assert dataset.test_groups is not None
    assert set(dataset.test_groups.tolist()) <= set(dataset.groups.tolist())
    assert dataset.inputs[:, 0, 0, 0].float().mean() > 250  # white background
