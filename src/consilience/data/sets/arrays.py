"""What files are read into: the bytes of images and the numbers of their classes."""

from __future__ import annotations

from typing import IO, Any

import numpy as np
import numpy.typing as npt

from consilience.reading import arrays

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Split = tuple[Bytes, Labels]
"""The images of a training or test set, [n, channels, height, width], and their classes, [n]."""

ARRAYS = ("inputs", "targets", "test_inputs", "test_targets")
"""The names of the arrays of a whole data set in one NumPy archive."""


def parse_labels(labels: npt.NDArray[Any], classes: int, first: int = 0) -> Labels:
    """Published labels, counted from 0; a label outside the classes is a ValueError.

    Args:
        labels: The labels as published.
        classes: The number of classes.
        first: The published number of the first class.
    """
    shifted = labels.astype(np.int64) - first
    if len(shifted) and not (shifted.min() >= 0 and shifted.max() < classes):
        low, high = labels.min(), labels.max()
        raise ValueError(f"labels go from {low} to {high}, expected {first} to {first + classes - 1}")
    return shifted


def read_arrays(file: IO[bytes], most: int) -> tuple[Split, Split]:
    """The training and the test split of a data set in one NumPy archive, which may have so many bytes."""
    found = arrays(file, most, ARRAYS)
    inputs, targets, test_inputs, test_targets = (found[key] for key in ARRAYS)
    return (inputs, targets), (test_inputs, test_targets)
