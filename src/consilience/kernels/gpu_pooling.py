"""Max-pooling on a GPU, in operations that a compiler fuses with those before and after it.

Torch's own says where a maximum was by its place in the whole image, in eight bytes, and `vmap` copies these
and the gradients with channels first. Here it is the place in its window, one byte, and channels stay last.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from consilience.kernels.lanes import lanes_first
from consilience.torch_internals import in_memory


def pool(x: Tensor, relu: bool) -> Tensor:
    """The largest of two by two neighbours, of equal ones the first, or zero if it is below and `relu`.

    Images are [..., channels, height, width]; height and width are even.
    """
    return cast(tuple[Tensor, Tensor], _Pool.apply(x, relu))[0]  # type: ignore[no-untyped-call]


def _at_places(values: Tensor, places: Tensor, back: bool) -> Tensor:
    return cast(Tensor, _AtPlaces.apply(values, places, back))  # type: ignore[no-untyped-call]


def _neighbours(x: Tensor) -> list[Tensor]:
    """The four pixels of every window, row by row."""
    height, width = x.shape[-2] // 2, x.shape[-1] // 2
    windows = x.reshape(*x.shape[:-2], height, 2, width, 2)
    return [pixel for row in windows.unbind(-3) for pixel in row.unbind(-1)]


def _twice(x: Tensor) -> Tensor:
    """Images [..., height, width, channels] with an axis after height and width for two of each."""
    return x.unsqueeze(-2).unsqueeze(-4)


class _Pool(torch.autograd.Function):
    """The maxima of windows, and the place of each in its window: 0 to 3, row by row, or -1 for a zero."""

    @staticmethod
    def forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
        a, b, c, d = _neighbours(x)
        above, below = torch.maximum(a, b), torch.maximum(c, d)
        values = torch.maximum(above, below)
        places = torch.where(below > above, (d > c).to(torch.int8) + 2, (b > a).to(torch.int8))
        if relu:
            values, places = values.relu(), torch.where(values > 0, places, -1)
        return values, in_memory(places)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return _at_places(grad, places, True), None

    @staticmethod
    def vmap(info: Any, dims: tuple[int, None], x: Tensor, relu: bool) -> tuple[Any, tuple[int, int]]:
        return _Pool.apply(x.movedim(dims[0], 0), relu), (0, 0)  # type: ignore[no-untyped-call]


class _AtPlaces(torch.autograd.Function):
    """The values of images at the places of windows.

    `back` is the adjoint: the value of each window is put at its place, and zeros at the others.
    """

    @staticmethod
    def forward(values: Tensor, places: Tensor, back: bool) -> Tensor:
        if not back:
            result = torch.zeros((), dtype=values.dtype, device=values.device)
            for place, pixel in enumerate(_neighbours(values)):
                result = torch.where(places == place, pixel, result)
            return result
        # Channels come last, as in memory. What is read for four pixels is computed and turned once before.
        last, at = in_memory(values.movedim(-3, -1).contiguous()), places.movedim(-3, -1)
        own = torch.arange(4, dtype=torch.int8, device=values.device).view(2, 1, 2, 1)
        wide = torch.where(_twice(at) == own, _twice(last), 0)
        return in_memory(wide.flatten(-5, -4).flatten(-3, -2)).movedim(-1, -3)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, places, ctx.back = inputs
        ctx.save_for_backward(places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return _at_places(grad, places, not ctx.back), None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], values: Tensor, places: Tensor, back: bool
    ) -> tuple[Tensor, int]:
        return _at_places(lanes_first(values, dims[0], info), lanes_first(places, dims[1], info), back), 0
