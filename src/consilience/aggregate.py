"""Means over messages: by data size, by importance. The stacked tensors have the messages on axis 0.

Sums run in float64. Of float32 numbers the mean of equal messages is then that message, bit for bit, and the
order of arrival decides at most a last bit here and there, where the sum lies between two numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.types import Params

PART = 2**24
"""How many numbers are taken to float64 at a time."""


def weighted_sum(stacked: Tensor, weights: Tensor) -> Tensor:
    """`sum_k weights[k] * stacked[k]`, in float64.

    It is one matrix product, so that many receivers of the same messages (a graph) cost no more memory
    than one.
    """
    flat, exact = stacked.reshape(stacked.shape[0], -1), weights.double()
    # In float64 large models would take twice their memory: that of a part is enough.
    width = max(1, PART // len(flat))
    sums = [exact @ part.double() for part in torch.split(flat, width, 1)]
    return (sums[0] if len(sums) == 1 else torch.cat(sums, -1)).reshape(stacked.shape[1:])


def effective_number(weights: Tensor) -> Tensor:
    """0-d, `(sum w)^2 / sum w^2`: how many equal weights are as uneven as these; 1 where all are 0."""
    squares = weights.double().square().sum()
    return torch.where(
        squares > 0, weights.double().sum().square() / torch.where(squares > 0, squares, 1.0), 1.0
    )


def mean(stacked: Params, weights: Tensor) -> Params:
    """The weighted mean of every tensor; `weights` sum to 1."""
    return {name: weighted_sum(value, weights).to(value.dtype) for name, value in stacked.items()}


def merge_buffers(stacked: Params, weights: Tensor) -> Params:
    """The merged buffers: floating ones by the weighted mean, integer ones (step counters) by the maximum."""
    merged: Params = {}
    for name, value in stacked.items():
        if value.is_floating_point():
            merged[name] = weighted_sum(value, weights).to(value.dtype)
        else:
            heard = (weights > 0).reshape(-1, *[1] * (value.ndim - 1))
            lowest = False if value.dtype == torch.bool else torch.iinfo(value.dtype).min
            merged[name] = torch.where(heard, value, lowest).amax(0)
    return merged


def importance_mean(
    stacked: Params, importance: Params, weights: Tensor, heard: Tensor | None = None
) -> Params:
    """The mean of every coordinate weighted by importance, or by `weights` where nobody has any importance.

    Args:
        stacked: The values; every tensor is [messages, ...].
        importance: Non-negative numbers of the same shapes.
        weights: [messages], the fallback; they sum to 1.
        heard: [messages], whether a message takes part; by default those with a positive weight do.
    """
    present = (weights > 0 if heard is None else heard).double()
    merged: Params = {}
    for name, value in stacked.items():
        evidence = importance[name].double()
        total = weighted_sum(evidence, present)
        weighed = weighted_sum(evidence * value, present) / torch.where(total > 0, total, 1.0)
        merged[name] = torch.where(total > 0, weighed, weighted_sum(value, weights)).to(value.dtype)
    return merged
