"""The numbers that normalise inputs."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.data.stored import Inputs, chunks
from consilience.errors import unknown

Normalisation = Literal["auto", "none", "unit", "half", "standard"]
"""How inputs are scaled: see `normalisation`."""


def normalisation(dataset: Dataset, kind: Normalisation) -> tuple[Tensor, Tensor]:
    """Shift and scale, float64 and one a channel, with which `(raw - shift) / scale` is the model's input.

    Args:
        dataset: The data set, whose training inputs alone decide the numbers.
        kind: `auto` as `half` for uint8 and as `none` for floats, which are the user's own; `none` raw
            values; `unit` uint8 divided by 255, floats unchanged; `half` unit values mapped from [0, 1] to
            [-1, 1]; `standard` mean 0 and standard deviation 1 for every channel (a constant channel
            becomes 0).

    Returns:
        Two tensors of shape `[channels, 1, ...]` that broadcast over a batch; the axis after the rows is the
        channel.
    """
    if kind not in get_args(Normalisation):
        raise unknown("normalisation", kind, get_args(Normalisation))
    if dataset.inputs.dtype == torch.int64:  # tokens are names, not numbers
        kind = "none"
    if kind == "auto":
        kind = "half" if dataset.inputs.dtype == torch.uint8 else "none"
    unit = 255.0 if dataset.inputs.dtype == torch.uint8 else 1.0
    one = torch.ones(dataset.shape[:1] + (1,) * (len(dataset.shape) - 1), dtype=torch.float64)
    if kind == "none":
        return 0 * one, one
    if kind == "unit":
        return 0 * one, unit * one
    if kind == "half":
        return unit / 2 * one, unit / 2 * one
    mean, deviation = _byte_moments(dataset.inputs) if unit == 255.0 else _float_moments(dataset.inputs)
    # Relative, because the mean of equal floats may be off by a rounding error.
    scale = torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)
    return mean.reshape(one.shape), scale.reshape(one.shape)


def _byte_moments(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The mean and population standard deviation of every channel, from its histogram of 256 values."""
    channels = range(inputs.shape[1])
    counts = sum(
        torch.stack([torch.bincount(chunk[:, channel].flatten(), minlength=256) for channel in channels])
        for chunk in chunks(inputs)
    )
    assert isinstance(counts, Tensor)
    share = counts.cpu().double() / counts.sum(dim=1, keepdim=True).cpu()
    values = torch.arange(256, dtype=torch.float64)
    mean = share @ values
    return mean, (share * (values - mean[:, None]) ** 2).sum(dim=1).sqrt()


def _float_moments(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The mean and population standard deviation of every channel, in two passes over chunks of rows."""
    dimensions = len(inputs.shape)
    axes = [axis for axis in range(dimensions) if axis != 1]
    count = inputs.shape.numel() // inputs.shape[1]
    sums = [chunk.double().sum(axes) for chunk in chunks(inputs)]
    mean = torch.stack(sums).sum(0) / count
    centre = mean.reshape(-1, *[1] * (dimensions - 2))
    squares = [((chunk.double() - centre) ** 2).sum(axes) for chunk in chunks(inputs)]
    return mean.cpu(), (torch.stack(squares).sum(0) / count).sqrt().cpu()
