"""Max-pooling on a GPU, of images with channels last in memory.

Torch's own keeps where each maximum was as a number of eight bytes. Here one byte is kept, the gradient reads
nothing else of the images, and a ReLU beside it costs nothing. On a GPU these are Triton kernels; elsewhere,
and for float64, torch computes the same.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from consilience.kernels.lanes import for_triton, lanes_first


def pool(x: Tensor, relu: bool) -> Tensor:
    """The largest of two by two neighbours, of equal ones the first, or zero if it is below and `relu`.

    Images are [..., channels, height, width]; height and width are even.
    """
    return cast(tuple[Tensor, Tensor], _Pool.apply(x, relu))[0]  # type: ignore[no-untyped-call]


def _at_places(values: Tensor, places: Tensor, back: bool) -> Tensor:
    return cast(Tensor, _AtPlaces.apply(values, places, back))  # type: ignore[no-untyped-call]


class _Pool(torch.autograd.Function):
    """The maxima of windows, and the place of each in its window: 0 to 3, row by row, or -1 for a zero."""

    @staticmethod
    def forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
        values, places = pool_pixels(x.movedim(-3, -1).contiguous(), relu)
        return values.movedim(-1, -3), places.movedim(-1, -3)

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
        # Values of windows are read where they lie: what comes back through a flattening has channels first.
        last, at = values.movedim(-3, -1), places.movedim(-3, -1).contiguous()
        found: Tensor = put_pixels(last, at) if back else take_pixels(last.contiguous(), at)
        return found.movedim(-1, -3)

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


def _neighbours(x: Tensor) -> list[Tensor]:
    """The four pixels of every window of images [..., height, width, channels], row by row."""
    return [x[..., row::2, column::2, :] for row in (0, 1) for column in (0, 1)]


@torch.library.custom_op("consilience::pool_pixels", mutates_args=())
def pool_pixels(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """The maxima of windows [..., height / 2, width / 2, channels], and their places in one byte each.

    Args:
        x: [..., height, width, channels]; its entries lie in order.
        relu: Whether maxima below 0 become 0, whose places are -1.
    """
    if for_triton(x):
        from consilience.kernels import triton_pooling

        return triton_pooling.pool(x, relu)
    a, b, c, d = _neighbours(x)
    above, below = torch.maximum(a, b), torch.maximum(c, d)
    values = torch.maximum(above, below)
    places = torch.where(below > above, (d > c).to(torch.int8) + 2, (b > a).to(torch.int8))
    if relu:
        values, places = values.relu(), torch.where(values > 0, places, -1)
    return values.contiguous(), places.contiguous()


@pool_pixels.register_fake
def _(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    *lanes, height, width, channels = x.shape
    values = x.new_empty(*lanes, height // 2, width // 2, channels)
    return values, torch.empty_like(values, dtype=torch.int8)


@torch.library.custom_op("consilience::take_pixels", mutates_args=())
def take_pixels(x: Tensor, places: Tensor) -> Tensor:
    """The pixels at the places of windows, and zeros where there is none.

    Args:
        x: [..., height, width, channels]; its entries lie in order.
        places: [..., height / 2, width / 2, channels], likewise.
    """
    if for_triton(x):
        from consilience.kernels import triton_pooling

        return triton_pooling.take(x, places)
    found = x.new_zeros(places.shape)
    for place, pixel in enumerate(_neighbours(x)):
        found = torch.where(places == place, pixel, found)
    return found.contiguous()


@take_pixels.register_fake
def _(x: Tensor, places: Tensor) -> Tensor:
    return x.new_empty(places.shape)


@torch.library.custom_op("consilience::put_pixels", mutates_args=())
def put_pixels(values: Tensor, places: Tensor) -> Tensor:
    """The images [..., height, width, channels] with values at the places of windows, and zeros elsewhere.

    Args:
        values: [..., height / 2, width / 2, channels], wherever they lie.
        places: The same; its entries lie in order.
    """
    if for_triton(values):
        from consilience.kernels import triton_pooling

        return triton_pooling.put(values, places)
    *lanes, height, width, channels = values.shape
    found = values.new_empty(*lanes, 2 * height, 2 * width, channels)
    for place, pixel in enumerate(_neighbours(found)):
        pixel.copy_(torch.where(places == place, values, 0))
    return found


@put_pixels.register_fake
def _(values: Tensor, places: Tensor) -> Tensor:
    *lanes, height, width, channels = values.shape
    return values.new_empty(*lanes, 2 * height, 2 * width, channels)
