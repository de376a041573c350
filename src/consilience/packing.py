"""Named tensors as one vector, and the few of its coordinates that matter: how sparse messages are made."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.types import Params


def concatenated(params: Params) -> Tensor:
    """[size] all coordinates, tensor after tensor."""
    return torch.cat([value.reshape(-1) for value in params.values()])


def divided(vector: Tensor, like: Params) -> Params:
    """The inverse of `concatenated`, for tensors of known names and shapes."""
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def size_of(params: Params) -> int:
    """The number of coordinates."""
    return sum(value.numel() for value in params.values())


def largest(scores: Tensor, count: int) -> Tensor:
    """[count] int32 the positions of the largest scores, in ascending order."""
    return scores.topk(count).indices.sort().values.to(torch.int32)


def taken(vector: Tensor, positions: Tensor) -> Tensor:
    """The values at some positions."""
    return vector.gather(0, positions.long())


def spread(values: Tensor, positions: Tensor, size: int) -> Tensor:
    """[size] zeros, with values at some positions."""
    return values.new_zeros(size).scatter(0, positions.long(), values)
