"""A few images of the bundled sample, in the form of any of the papers' data: enough to see a recipe run."""

from __future__ import annotations

import numpy as np

from consilience.data import load
from consilience.data.dataset import Dataset


def few(rows: int = 300, channels: int = 1, side: int = 28, writers: int | None = None) -> Dataset:
    """Some rows of the sample, a third as many for testing.

    Args:
        rows: How many images there are to train on.
        channels: How often an image is repeated, as its colours.
        side: The pixels of a side; more than an image has are its border.
        writers: How many writers the images are dealt to, where they are to have some.
    """
    sample = load("mnist-sample")

    def images(inputs: np.ndarray) -> np.ndarray:
        border = (side - inputs.shape[-1]) // 2
        wide = np.pad(inputs, ((0, 0), (0, 0), (border, border), (border, border)))
        return wide.repeat(channels, axis=1)

    train, test = np.asarray(sample.inputs[:rows]), np.asarray(sample.test_inputs[: rows // 3])

    def dealt(inputs: np.ndarray) -> np.ndarray | None:
        return np.arange(len(inputs)) % writers if writers else None

    return Dataset.from_arrays(
        "few",
        images(train),
        sample.targets[:rows].numpy(),
        images(test),
        sample.test_targets[: rows // 3].numpy(),
        classes=sample.outputs,
        groups=dealt(train),
        test_groups=dealt(test),
    )
