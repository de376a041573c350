"""The IDX format of MNIST and its relatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from consilience.data.sets.arrays import Bytes, Split, parse_labels
from consilience.data.sets.base import PublishedFile
from consilience.data.sets.published import Published
from consilience.data.storage import Store, blame


@final
@dataclass(frozen=True, kw_only=True)
class Idx(Published):
    """A data set in IDX files: images and labels of the training set, images and labels of the test set.

    Attributes:
        first_label: The published number of the first class.
        transposed: Whether rows and columns of the images are swapped.
    """

    first_label: int = 0
    transposed: bool = False

    def splits(self, store: Store) -> tuple[Split, Split]:
        images, labels, test_images, test_labels = self.members
        return self._split(store, images, labels), self._split(store, test_images, test_labels)

    def _split(self, store: Store, images: str, labels: str) -> Split:
        pixels = store.parse(images, lambda content: parse_idx(content, 3))
        targets = store.parse(
            labels, lambda content: parse_labels(parse_idx(content, 1), self.classes, self.first_label)
        )
        with blame(self.name, store.place / labels):
            if len(pixels) != len(targets):
                raise ValueError(f"{len(targets)} labels for {len(pixels)} images")
        upright = np.ascontiguousarray(pixels.transpose(0, 2, 1)) if self.transposed else pixels
        return upright[:, None], targets


def parse_idx(content: bytes, dimensions: int) -> Bytes:
    """The array in an IDX file of unsigned bytes with so many dimensions; anything else is a ValueError."""
    magic, expected = content[:4], bytes([0, 0, 8, dimensions])
    if magic != expected:
        raise ValueError(f"starts with {magic.hex() or 'nothing'}, expected {expected.hex()}")
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[offset : offset + 4], "big") for offset in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{len(content)} bytes, expected {start + math.prod(shape)} for the shape {shape}")
    # A copy, because torch wants memory it may write to.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def idx_members(prefix: str, test: str) -> tuple[str, ...]:
    """The usual names of the four files, where the test set is called `test`."""
    return tuple(
        f"{prefix}{split}-{part}-ubyte"
        for split in ("train", test)
        for part in ("images-idx3", "labels-idx1")
    )


def like_mnist(
    name: str, description: str, licence: str, base: str, published: tuple[tuple[str, int], ...]
) -> Idx:
    """A data set with the sizes and the file names of MNIST.

    Args:
        name: What `load` calls it.
        description: One line for a listing.
        licence: The licence or origin.
        base: Where the four compressed files are published.
        published: The MD5 and number of bytes of each.
    """
    members = idx_members("", "t10k")
    return Idx(
        name=name,
        description=description,
        classes=10,
        shape=(1, 28, 28),
        training_rows=60_000,
        test_rows=10_000,
        licence=licence,
        folder=name,
        members=members,
        files=tuple(
            PublishedFile(f"{name}/{member}.gz", f"{base}/{member}.gz", f"md5:{md5}", size)
            for member, (md5, size) in zip(members, published, strict=True)
        ),
    )
