"""Tiny-ImageNet: folders of JPEG images, decoded once."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from consilience.data import Dataset
from consilience.data.sets import Source
from consilience.data.sets.tiny_imagenet import CACHE
from consilience.errors import UserError

WNIDS = ("n02", "n01", "n03")  # not sorted, as published


def jpeg(mode: str, colour: object, size: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (size, size), colour).save(buffer, "JPEG")
    return buffer.getvalue()


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


FOLDER = tiny_files()
ARCHIVE = {"tiny-imagenet-200.zip": FOLDER}
LAYOUTS: dict[str, dict[str, object]] = {"tiny folder": FOLDER, "tiny zip": ARCHIVE}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads(layout: str, loaded: Callable[..., Dataset], tmp_path: Path):
    loaded("tiny-imagenet", LAYOUTS[layout], tmp_path)


def test_an_archive_and_its_folder_hold_the_same(loaded: Callable[..., Dataset], tmp_path: Path):
    folder = loaded("tiny-imagenet", FOLDER, tmp_path / "a")
    assert loaded("tiny-imagenet", ARCHIVE, tmp_path / "b").digest() == folder.digest()


def test_tiny_imagenet_order_and_colours(loaded: Callable[..., Dataset], tmp_path: Path):
    dataset = loaded("tiny-imagenet", ARCHIVE, tmp_path)
    assert dataset.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test_targets.tolist() == [2, 0, 1]
    means = dataset.inputs.double().mean((2, 3))
    expected = [[0, 0, 0], [250, 0, 0], [40, 40, 40], [250, 0, 0], [80, 80, 80], [250, 0, 0]]
    assert (means - torch.tensor(expected)).abs().max() < 5  # JPEG is lossy


def test_tiny_imagenet_is_decoded_once(
    loaded: Callable[..., Dataset], source_of: Callable[[str], Source], tmp_path: Path
):
    source, first = source_of("tiny-imagenet"), loaded("tiny-imagenet", ARCHIVE, tmp_path)
    (tmp_path / "tiny-imagenet-200.zip").unlink()
    assert [path.name for path in tmp_path.iterdir()] == [CACHE]
    assert source.present(tmp_path)
    assert source.read(tmp_path).digest() == first.digest()
    (tmp_path / CACHE).write_bytes(b"PK")
    with pytest.raises(UserError, match=rf"{CACHE} is damaged"):
        source.read(tmp_path)


def test_tiny_imagenet_with_missing_images_is_not_cached(
    put: Callable[..., None], source_of: Callable[[str], Source], tmp_path: Path
):
    put(tmp_path, FOLDER)
    (tmp_path / "tiny-imagenet-200/train/n01/images/n01_0.JPEG").unlink()
    with pytest.raises(UserError, match=r"tiny-imagenet-200 is damaged .*\(5, 3, 64, 64\), expected \(6, 3"):
        source_of("tiny-imagenet").read(tmp_path)
    assert not (tmp_path / CACHE).exists()


def test_tiny_imagenet_without_pillow(
    put: Callable[..., None],
    source_of: Callable[[str], Source],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    put(tmp_path, FOLDER)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match="pip install pillow"):
        source_of("tiny-imagenet").read(tmp_path)


ANNOTATIONS = "tiny-imagenet-200/val/val_annotations.txt"
PICTURE = "tiny-imagenet-200/train/n01/images/n01_1.JPEG"

# The file to replace, its damaged content as a function of the right one, a part of the reason.
DAMAGES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    (ANNOTATIONS, lambda right: right.replace(b"n03", b"n99"), "lacks 'n99'"),
    (ANNOTATIONS, lambda right: b"val_0.JPEG", "unpack"),
    (PICTURE, lambda right: right[:200], ""),
    (PICTURE, lambda right: jpeg("RGB", 0, size=32), "(3, 32, 32), expected (3, 64, 64)"),
]


@pytest.mark.parametrize(
    ("file", "damage", "reason"), DAMAGES, ids=[f"tiny folder: {case[2]}" for case in DAMAGES]
)
def test_damage_is_one_line_that_names_the_file(
    file: str, damage: Callable[[bytes], bytes], reason: str, check_damage: Callable[..., None]
):
    check_damage("tiny-imagenet", FOLDER, file, damage, reason)


def test_a_missing_file_is_one_line_that_names_it(check_missing: Callable[..., None]):
    file = "tiny-imagenet-200/wnids.txt"
    check_missing("tiny-imagenet", FOLDER, file, [file, "tiny-imagenet-200.zip"])
