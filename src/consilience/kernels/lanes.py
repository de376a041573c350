"""What kernels for many lanes share; a lane is the place of one client in a stacked computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def lanes_first(value: Tensor, dim: int | None, info: Any) -> Tensor:
    """A value with the axis of lanes first, inside a `vmap` rule; without one (None) all lanes share it."""
    return value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)


def merged(info: Any, dims: Sequence[Any], values: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of lanes of lanes, inside a `vmap` rule, as those of more lanes."""
    return [lanes_first(value, dim, info).flatten(0, 1) for value, dim in zip(values, dims, strict=False)]


def lane_by_lane(
    function: Callable[..., Tensor], info: Any, dims: Sequence[int | None], given: Sequence[Any]
) -> tuple[Tensor, int]:
    """A `vmap` rule for what is as fast for one client after the other as for many at once.

    Args:
        function: What is mapped.
        info: What torch tells a rule, the number of clients among it.
        dims: Which axis of each argument is that of the clients; None: the argument is shared.
        given: The arguments.
    """
    lanes = range(info.batch_size)
    pairs = list(zip(given, dims, strict=True))
    results = [function(*(v if d is None else v.select(d, lane) for v, d in pairs)) for lane in lanes]
    return torch.stack(results), 0


def for_triton(*values: Tensor) -> bool:
    """Whether Triton's kernels compute with some tensors; elsewhere, and for float64, torch does."""
    return all(value.is_cuda and value.dtype != torch.float64 for value in values)
