"""Readers of the published formats: IDX (MNIST and relatives), CIFAR's rows, Tiny-ImageNet's folders."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.data.storage import Store, blame
from consilience.errors import UserError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Split = tuple[Bytes, Labels]

CIFAR_SHAPE = (3, 32, 32)
TINY_IMAGENET_SHAPE = (3, 64, 64)


def parse_labels(labels: npt.NDArray[Any], classes: int, first: int = 0) -> Labels:
    """Published labels, counted from 0; a label outside the classes is a ValueError."""
    shifted = labels.astype(np.int64) - first
    if len(shifted) and not (shifted.min() >= 0 and shifted.max() < classes):
        low, high = labels.min(), labels.max()
        raise ValueError(f"labels go from {low} to {high}, expected {first} to {first + classes - 1}")
    return shifted


def parse_idx(content: bytes, dimensions: int) -> Bytes:
    """An IDX file of unsigned bytes with that many dimensions; anything else is a ValueError."""
    magic, expected = content[:4], bytes([0, 0, 8, dimensions])
    if magic != expected:
        raise ValueError(f"starts with {magic.hex() or 'nothing'}, expected {expected.hex()}")
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[offset : offset + 4], "big") for offset in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{len(content)} bytes, expected {start + math.prod(shape)} for the shape {shape}")
    # A copy, because torch wants memory it may write to.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_idx(
    store: Store, images: str, labels: str, classes: int, *, first: int = 0, transposed: bool = False
) -> Split:
    """One split of an IDX data set; `transposed` where rows and columns are swapped, as in EMNIST."""
    pixels = store.parse(images, lambda content: parse_idx(content, 3))
    targets = store.parse(labels, lambda content: parse_labels(parse_idx(content, 1), classes, first))
    with blame(store.dataset, store.place / labels):
        if len(pixels) != len(targets):
            raise ValueError(f"{len(targets)} labels for {len(pixels)} images")
    upright = np.ascontiguousarray(pixels.transpose(0, 2, 1)) if transposed else pixels
    return upright[:, None], targets


def parse_cifar(content: bytes, label_bytes: int, classes: int) -> Split:
    """Rows of label bytes, the last of which is the class, and 3 planes of 32 x 32 pixels."""
    width = label_bytes + math.prod(CIFAR_SHAPE)
    if not content or len(content) % width:
        raise ValueError(f"{len(content)} bytes, expected rows of {width}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    return rows[:, label_bytes:].reshape(-1, *CIFAR_SHAPE), parse_labels(rows[:, label_bytes - 1], classes)


def read_cifar(store: Store, members: tuple[str, ...], label_bytes: int, classes: int) -> Split:
    """One split of a CIFAR data set, its files one after the other."""
    parts = [
        store.parse(member, lambda content: parse_cifar(content, label_bytes, classes)) for member in members
    ]
    return np.concatenate([pixels for pixels, _ in parts]), np.concatenate([labels for _, labels in parts])


def read_tiny_imagenet(store: Store) -> tuple[Split, Split]:
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
    pixels = np.empty((len(rows), *TINY_IMAGENET_SHAPE), np.uint8)
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
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)
        if pixels.shape != TINY_IMAGENET_SHAPE:
            raise ValueError(f"an image of shape {pixels.shape}, expected {TINY_IMAGENET_SHAPE}")
        return pixels

    return decode
