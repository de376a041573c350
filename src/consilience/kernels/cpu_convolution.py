"""Convolutions over few channels on a CPU, as products of matrices.

In memory the batch is the last axis of the images, after rows, channels and columns. So a processor works
along the columns of all images at once, which are many, and not along channels or filters, which are few.
And only copies along a row have to be made for the filters: the rows that a filter covers follow each other
in memory anyway. Results lie in the same way, so that the next layer finds them so.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.kernels.lanes import lane_by_lane

Pair = tuple[int, int]

CHANNELS, SIZE, BATCH = 20, 5, 8
"""The most channels, the narrowest filters and the fewest images: for others torch's kernels are faster."""


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether images [batch, ...] and filters are such that this was measured to be the faster way."""
    if not (x.is_cpu and x.ndim == 4):
        return False
    return len(x) >= BATCH and weight.shape[1] <= CHANNELS and weight.shape[3] >= SIZE


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """The result of conv2d; in memory its batch is the last axis."""
    images = _batch_last(x).permute(2, 1, 3, 0)
    if any(padding):
        images = F.pad(images, (0, 0, padding[1], padding[1], 0, 0, padding[0], padding[0]))
    patches = _patches(images, weight.shape[3], back=False)
    outputs = _product(weight.transpose(1, 2), patches, None, bias)
    return outputs.permute(3, 1, 0, 2)


def _batch_last(x: Tensor) -> Tensor:
    return x if x.stride(0) == 1 else x.flatten(1).t().contiguous().t().reshape(x.shape)


def _patches(values: Tensor, size: int, back: bool) -> Tensor:
    return cast(Tensor, _Patches.apply(values, size, back))  # type: ignore[no-untyped-call]


class _Patches(torch.autograd.Function):
    """[height, channels, width, batch] images to [height, channels, size, outputs in a row, batch] patches.

    A patch has one row. `back` is the adjoint: what patches say about the same number is added up.
    """

    @staticmethod
    def forward(values: Tensor, size: int, back: bool) -> Tensor:
        if not back:
            return _windows(values, values.shape[2] - size + 1).contiguous()
        height, channels, _, width, batch = values.shape
        images = values.new_zeros(height, channels, width + size - 1, batch)
        for place, value in zip(_windows(images, width).unbind(2), values.unbind(2), strict=True):
            place.add_(value)
        return images

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.size, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _patches(grad, ctx.size, not ctx.back), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        return lane_by_lane(_patches, info, dims, given)


def _windows(images: Tensor, width: int) -> Tensor:
    """The patches of images, as overlapping views."""
    return images.unfold(2, width, 1).mT


def _product(
    filters: Tensor | None,
    patches: Tensor | None,
    outputs: Tensor | None,
    bias: Tensor | None = None,
) -> Tensor:
    return cast(Tensor, _Product.apply(filters, patches, outputs, bias))  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    """Outputs from filters and patches, or the gradient with respect to one of these from the other.

    The sum of outputs times their gradient is linear in filters, in patches and in that gradient, and what is
    wanted is its derivative with respect to one of the three. So the derivatives of each are the others.

    filters: [filters, height, channels, width]
    patches: as above
    outputs, or their gradient: [rows, filters, columns, batch]
    """

    @staticmethod
    def forward(
        filters: Tensor | None,
        patches: Tensor | None,
        outputs: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        if filters is None:
            return _of_filters(cast(Tensor, patches), cast(Tensor, outputs))
        if patches is None:
            return _of_patches(filters, cast(Tensor, outputs))
        return _outputs(filters, patches, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        *sides, bias = inputs
        ctx.biased = bias is not None
        ctx.wanted = next(number for number, side in enumerate(sides) if side is None)
        ctx.save_for_backward(*(side for side in sides if side is not None))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sides: list[Tensor | None] = list(ctx.saved_tensors)
        sides.insert(ctx.wanted, grad)

        def of(side: int) -> Tensor | None:
            if not ctx.needs_input_grad[side]:
                return None
            return _product(*(None if other == side else v for other, v in enumerate(sides)))

        return of(0), of(1), of(2), grad.sum((0, 2, 3)) if ctx.biased else None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        return lane_by_lane(_product, info, dims, given)


def _outputs(filters: Tensor, patches: Tensor, bias: Tensor | None) -> Tensor:
    stacked = _stacked(patches, filters.shape[1])
    matrices = filters.flatten(1).expand(len(stacked), -1, -1)
    if bias is None:
        products = torch.bmm(matrices, stacked)
    else:
        products = torch.baddbmm(bias[:, None], matrices, stacked)
    return products.reshape(*products.shape[:2], *patches.shape[3:])


def _of_filters(patches: Tensor, outputs: Tensor) -> Tensor:
    height = len(patches) - len(outputs) + 1
    total = torch.bmm(outputs.flatten(2), _stacked(patches, height).mT).sum(0)
    return total.reshape(-1, height, *patches.shape[1:3])


def _of_patches(filters: Tensor, outputs: Tensor) -> Tensor:
    height, matrix = filters.shape[1], filters.flatten(1).t()
    patches = outputs.new_zeros(len(outputs) + height - 1, *filters.shape[2:], *outputs.shape[2:])
    # What two rows of outputs say about the same patch is added up, so they come one after the other.
    for place, row in zip(_stacked(patches, height).unbind(), outputs.flatten(2).unbind(), strict=True):
        place.addmm_(matrix, row)
    return patches


def _stacked(patches: Tensor, height: int) -> Tensor:
    """What each row of outputs depends on: [rows, numbers of a filter, columns * batch] overlapping views."""
    rows = patches.flatten(3).flatten(0, 2)
    numbers = len(rows) // len(patches)
    return rows.unfold(0, height * numbers, numbers).mT
