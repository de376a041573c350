"""Sums of the squares of a convolution's gradients, of which every row of a batch has its own.

These gradients take as much memory as the layer's weights for every row. On a GPU a kernel squares them where
it computes them, and only sums are written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.kernels.cpu_convolution import Pair
from consilience.kernels.lanes import for_triton, merged


def row_squares(
    x: Tensor, grad: Tensor, weight: Tensor, size: Pair, padding: Pair, stride: Pair
) -> tuple[Tensor, Tensor]:
    """`sum_i weight_i g_i^2`, with g_i the gradient of row i: for the filters of a convolution and biases.

    Args:
        x: [batch, channels, height, width] the images.
        grad: [batch, filters, height, width] the gradient with respect to the result.
        weight: [batch] how much a row counts.
        size: The height and the width of the filters.
        padding: The rows and the columns of zeros around images.
        stride: How far apart the places of a filter are.
    """
    shape = (grad.shape[1], x.shape[1], *size)
    if stride == (1, 1) and for_triton(x, grad, weight):
        images, grads = x.to(grad.dtype).movedim(1, 3), grad.movedim(1, 3)
        found = square_lanes(images[None], grads[None], weight[None], list(size), list(padding))
        return found[0][0].movedim(3, 1), found[1][0]
    rows = grad.flatten(2) @ patches(x, size, padding, stride)  # [batch, filters, weights of a filter]
    return (
        torch.tensordot(weight, rows * rows, 1).reshape(shape),
        torch.tensordot(weight, grad.sum((2, 3)) ** 2, 1),
    )


def patches(x: Tensor, size: Pair, padding: Pair, stride: Pair) -> Tensor:
    """The input of every output position, [batch, positions, weights of a filter]."""
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    windows = padded.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])  # [b, c, rows, cols, h, w]
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


@torch.library.custom_op("consilience::square_lanes", mutates_args=())
def square_lanes(
    x: Tensor, grad: Tensor, weight: Tensor, size: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    """The sums of squares for [lanes, batch, ...] images, with channels last, as are those of the filters."""
    from consilience.kernels import triton_convolution as launches

    return launches.square_deep(x.contiguous(), grad.contiguous(), weight.contiguous(), size, padding)


@square_lanes.register_fake
def _(x: Tensor, grad: Tensor, weight: Tensor, size: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    lanes, filters = grad.shape[0], grad.shape[4]
    of_weight = x.new_empty(lanes, filters, *size, x.shape[4], dtype=torch.float32)
    return of_weight, of_weight.new_empty(lanes, filters)


@square_lanes.register_vmap
def _(
    info: Any, dims: tuple[Any, ...], x: Tensor, grad: Tensor, weight: Tensor, *rest: Any
) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    found = square_lanes(*merged(info, dims, (x, grad, weight)), *rest)
    return tuple(value.unflatten(0, (info.batch_size, -1)) for value in found), (0, 0)
