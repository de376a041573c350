"""The binary format of CIFAR-10 and CIFAR-100: rows of label bytes and pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from consilience.data.sets.arrays import Split, parse_labels
from consilience.data.sets.published import Published
from consilience.data.storage import Store

SHAPE = (3, 32, 32)


@final
@dataclass(frozen=True, kw_only=True)
class Cifar(Published):
    """A data set in CIFAR's rows; the last of its files is the test set.

    Attributes:
        label_bytes: How many label bytes open a row; the last of them is the class.
    """

    label_bytes: int

    def splits(self, store: Store) -> tuple[Split, Split]:
        *batches, last = self.members
        return self._split(store, batches), self._split(store, [last])

    def _split(self, store: Store, members: list[str]) -> Split:
        """The rows of some files, one after the other."""
        parts = [
            store.parse(member, lambda content: parse_cifar(content, self.label_bytes, self.classes))
            for member in members
        ]
        pixels, labels = zip(*parts, strict=True)
        return np.concatenate(pixels), np.concatenate(labels)


def parse_cifar(content: bytes, label_bytes: int, classes: int) -> Split:
    """The images and classes in a file whose rows are label bytes and 3 planes of 32 x 32 pixels.

    Args:
        content: The file.
        label_bytes: How many label bytes open a row; the last of them is the class.
        classes: The number of classes.
    """
    width = label_bytes + math.prod(SHAPE)
    if not content or len(content) % width:
        raise ValueError(f"{len(content)} bytes, expected rows of {width}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    return rows[:, label_bytes:].reshape(-1, *SHAPE), parse_labels(rows[:, label_bytes - 1], classes)
