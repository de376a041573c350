"""What kernels for many lanes share; a lane is the place of one client in a stacked computation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lanes_first(value: Tensor, dim: int | None, info: Any) -> Tensor:
    """A value with the axis of lanes first, inside a `vmap` rule; without one (None) all lanes share it."""
    return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)


def in_memory(value: Tensor) -> Tensor:
    """The same value, which a compiler computes once and keeps.

    It would write a copy for each kernel that it does not know. A view by strides needs it in memory.
    """
    return value.as_strided(value.shape, value.stride())


def for_triton(*values: Tensor) -> bool:
    """Whether Triton's kernels compute with some tensors; elsewhere, and for float64, torch does."""
    return all(value.is_cuda and value.dtype != torch.float64 for value in values)
