"""Tiny-ImageNet: folders of JPEG images, which are decoded once."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import final

import numpy as np

from consilience.data.dataset import Dataset
from consilience.data.sets.arrays import ARRAYS, Bytes, Split, read_arrays
from consilience.data.sets.base import PublishedFile
from consilience.data.sets.published import Published
from consilience.data.storage import Store, blame
from consilience.errors import UserError

CACHE = "tiny-imagenet-200-decoded.npz"
"""The file in the data directory that keeps what was decoded."""
SHAPE = (3, 64, 64)


@final
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Published):
    """Tiny-ImageNet; what was decoded is kept in the data directory."""

    def present(self, root: Path) -> bool:
        return (root / CACHE).is_file() or super().present(root)

    def read(self, root: Path) -> Dataset:
        cache = root / CACHE
        if cache.is_file():
            with blame(self.name, cache), cache.open("rb") as file:
                return self.checked(cache, *read_arrays(file, self.most))
        dataset = super().read(root)
        # Decoding takes a minute. A directory that cannot be written to only costs that minute again.
        with contextlib.suppress(OSError):
            _write_cache(cache, dataset)
        return dataset

    def splits(self, store: Store) -> tuple[Split, Split]:
        """Training and validation images; classes are numbered as in `wnids.txt`, files sorted by name."""
        wnids = store.parse("wnids.txt", lambda content: content.decode().split())
        numbers = {wnid: number for number, wnid in enumerate(wnids)}
        images = sorted(name for name in store.names if name.startswith("train/") and name.endswith(".JPEG"))
        by_wnid = {wnid: list(names) for wnid, names in groupby(images, key=lambda name: name.split("/")[1])}
        training = [(name, numbers[wnid]) for wnid in wnids for name in by_wnid.get(wnid, [])]

        def annotated(content: bytes) -> list[tuple[str, int]]:
            fields = [line.split("\t") for line in content.decode().splitlines() if line]
            return [(f"val/images/{name}", numbers[wnid]) for name, wnid, *_ in fields]

        validation = store.parse("val/val_annotations.txt", annotated)
        return _decoded(store, training), _decoded(store, validation)


def _decoded(store: Store, rows: list[tuple[str, int]]) -> Split:
    decode = _jpeg_decoder()
    pixels = np.empty((len(rows), *SHAPE), np.uint8)
    for row, (name, _) in enumerate(rows):
        pixels[row] = store.parse(name, decode)
    return pixels, np.array([label for _, label in rows], np.int64)


def _jpeg_decoder() -> Callable[[bytes], Bytes]:
    try:
        from PIL import Image  # optional: only Tiny-ImageNet needs it
    except ImportError:
        raise UserError("tiny-imagenet: its JPEG images need Pillow; run `pip install pillow`") from None

    def decode(content: bytes) -> Bytes:
        # Some of the images are grey; they get three equal channels.
        image = Image.open(io.BytesIO(content))
        if (image.height, image.width) != SHAPE[1:]:  # before anything is decoded
            raise ValueError(f"an image of shape {(3, image.height, image.width)}, expected {SHAPE}")
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)

    return decode


def _write_cache(path: Path, dataset: Dataset) -> None:
    """Write the cache whole or not at all, so that a reader never sees half a file."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, **{key: getattr(dataset, key).numpy() for key in ARRAYS})
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


TINY_IMAGENET = TinyImageNet(
    name="tiny-imagenet",
    description="ImageNet photographs of 200 classes at 64 x 64; the validation images are the test set",
    classes=200,
    shape=SHAPE,
    training_rows=100_000,
    test_rows=10_000,
    licence="Stanford CS231n, from ImageNet (research only)",
    folder="tiny-imagenet-200",
    members=("wnids.txt", "val/val_annotations.txt"),
    files=(
        PublishedFile(
            "tiny-imagenet-200.zip",
            "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
        ),
    ),
    inside="tiny-imagenet-200",
)
