"""Convolutions of many clients at once, each with weights of its own.

Under `vmap`, torch turns these into one grouped convolution, for which cuDNN has no fast kernels. On a GPU
they are products of matrices here, whose one side, the patches of the images, is never written to memory.
A lane is the place of one client in a stacked computation.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from consilience.kernels import cpu_convolution
from consilience.kernels.cpu_convolution import Pair
from consilience.kernels.lanes import lanes_first, merged
from consilience.torch_internals import autocast_type, in_memory, recast

SHALLOW = 32
"""The most weights of a filter whose patches are read as well from images with channels first."""
SMALL = 8
"""The bytes below which it is slow to read some at a time."""
FULL = 4
"""The number to whose multiples channels are filled up, where too few could be read at a time."""


class Convolution(nn.Conv2d):
    """A convolution with stride 1 that knows how to run for many clients at once."""

    free: bool
    """Whether its outputs may lie in memory in any order."""

    @classmethod
    def of(cls, plain: nn.Conv2d, *, free: bool = False) -> Convolution:
        """A plain layer as one of these, with the same parameters."""
        layer = recast(cls, plain)
        layer.free = free
        return layer

    @staticmethod
    def fits(layer: nn.Conv2d) -> bool:
        """Whether a plain layer can become one of these."""
        return (
            type(layer) is nn.Conv2d
            and layer.stride == layer.dilation == (1, 1)
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and all(pad < size for pad, size in zip(layer.padding, layer.kernel_size, strict=True))
        )

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, [batch, filters, ...], for images [batch, channels, height, width]."""
        padding = cast(Pair, self.padding)
        own = self.free and autocast_type("cpu") is None
        if own and cpu_convolution.fits(x, self.weight):
            return cpu_convolution.convolve(x, self.weight, self.bias, padding)
        if not x.is_cuda or x.dtype == torch.float64:
            return super().forward(x)
        weight, bias = self.weight, self.bias
        if bias is None:
            bias = weight.new_zeros(weight.shape[0])
        low = autocast_type(x.device.type)
        if low is not None:
            x, weight, bias = x.to(low), weight.to(low), bias.to(low)
        return _convolve(x, weight, bias, padding, self.free)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor, padding: Pair, free: bool = True) -> Tensor:
    return cast(Tensor, _Convolve.apply(x, weight, bias, padding, free))  # type: ignore[no-untyped-call]


def _correlate(x: Tensor, grad: Tensor, padding: Pair, size: Pair) -> tuple[Tensor, Tensor]:
    return cast(tuple[Tensor, Tensor], _Correlate.apply(x, grad, padding, size))  # type: ignore[no-untyped-call]


def _transposed(grad: Tensor, weight: Tensor, padding: Pair) -> Tensor:
    return cast(Tensor, _Transposed.apply(grad, weight, padding))  # type: ignore[no-untyped-call]


class _Convolve(torch.autograd.Function):
    """conv2d with a bias; `free` says whether the result may lie in memory in any order."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, padding: Pair, free: bool) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, weight, _, ctx.padding, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        of_x = _transposed(grad, weight, ctx.padding) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_x, None, grad.sum((0, 2, 3)), None, None
        of_weight, of_bias = _correlate(x, grad, ctx.padding, (weight.shape[2], weight.shape[3]))
        return of_x, of_weight, of_bias, None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor, padding: Pair, free: bool
    ) -> tuple[Any, int]:
        if dims[1] is None and dims[2] is None:  # the same weights for all: one larger batch
            images = x.movedim(dims[0], 0)
            flat = _convolve(images.flatten(0, 1), weight, bias, padding, free)
            return flat.reshape(*images.shape[:2], *flat.shape[1:]), 0
        x, weight, bias = (lanes_first(v, d, info) for v, d in zip((x, weight, bias), dims, strict=False))
        out = _many(x, weight, bias, padding)
        return out if free else out.contiguous(), 0


class _Transposed(torch.autograd.Function):
    """The gradient of conv2d with respect to its images, also called a transposed convolution."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, padding: Pair) -> Tensor:
        size = (
            size + filters - 1 - 2 * pad
            for size, filters, pad in zip(grad.shape[2:], weight.shape[2:], padding, strict=True)
        )
        shape = (grad.shape[0], weight.shape[1], *size)
        return cast(Tensor, conv2d_input(shape, weight, grad, padding=padding))  # type: ignore[no-untyped-call]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        grad, weight, ctx.padding = inputs
        ctx.save_for_backward(grad, weight)

    @staticmethod
    def backward(ctx: Any, of_x: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        grad, weight = ctx.saved_tensors
        no_bias = weight.new_zeros(weight.shape[0])
        of_grad = _convolve(of_x, weight, no_bias, ctx.padding) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_grad, None, None
        of_weight, _ = _correlate(of_x, grad, ctx.padding, (weight.shape[2], weight.shape[3]))
        return of_grad, of_weight, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], grad: Tensor, weight: Tensor, padding: Pair
    ) -> tuple[Tensor, int]:
        if dims[1] is None:  # the same weights for all: one larger batch
            grads = grad.movedim(dims[0], 0)
            flat = _transposed(grads.flatten(0, 1), weight, padding)
            return flat.reshape(*grads.shape[:2], *flat.shape[1:]), 0
        # The turned filters over the gradient, for which there are kernels.
        grad, weight = (lanes_first(v, d, info) for v, d in zip((grad, weight), dims, strict=False))
        turned = weight.flip(3, 4).transpose(1, 2)
        outside = (turned.shape[3] - 1 - padding[0], turned.shape[4] - 1 - padding[1])
        return _many(grad, turned, turned.new_zeros(turned.shape[:2]), outside), 0


class _Correlate(torch.autograd.Function):
    """The gradients of conv2d with respect to its weights and its bias."""

    @staticmethod
    def forward(x: Tensor, grad: Tensor, padding: Pair, size: Pair) -> tuple[Tensor, Tensor]:
        shape = (grad.shape[1], x.shape[1], *size)
        of_weight = conv2d_weight(x, shape, grad, padding=padding)  # type: ignore[no-untyped-call]
        return of_weight, grad.sum((0, 2, 3))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, grad, ctx.padding, _ = inputs
        ctx.save_for_backward(x, grad)

    @staticmethod
    def backward(
        ctx: Any, of_weight: Tensor, of_bias: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, grad = ctx.saved_tensors
        of_x = _transposed(grad, of_weight, ctx.padding) if ctx.needs_input_grad[0] else None
        of_grad = _convolve(x, of_weight, of_bias, ctx.padding) if ctx.needs_input_grad[1] else None
        return of_x, of_grad, None, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], x: Tensor, grad: Tensor, padding: Pair, size: Pair
    ) -> tuple[Any, Any]:
        x, grad = lanes_first(x, dims[0], info), _channels_last(lanes_first(grad, dims[1], info))
        channels = x.shape[2]
        if channels * size[0] * size[1] <= SHALLOW:
            return correlate_lanes(x, grad, list(size), list(padding), False), (0, 0)
        images = _in_pieces(_channels_last(x))
        of_weight, of_bias = correlate_lanes(images, grad, list(size), list(padding), True)
        return (of_weight[..., :channels].movedim(-1, 2), of_bias), (0, 0)


def _many(x: Tensor, weight: Tensor, bias: Tensor, padding: Pair) -> Tensor:
    """conv2d of many lanes, [lanes, batch, filters, ...], whose channels come last in memory."""
    deep = weight[0, 0].numel() > SHALLOW
    if deep:
        x, weight = _in_pieces(_channels_last(x)), _in_pieces(_channels_last(weight))
    return cast(Tensor, convolve_lanes(x, weight, bias, list(padding), deep)).movedim(-1, 2)


def _channels_last(value: Tensor) -> Tensor:
    order = (0, 1, 3, 4, 2)
    if value.permute(order).is_contiguous():
        return in_memory(value).permute(order)
    return value.permute(order).contiguous()


def _in_pieces(value: Tensor) -> Tensor:
    """Images or filters whose channels come last, with channels of zeros where few can be read at once.

    Three channels that are read one by one take many times as long as four at once. No more than a third is
    added.
    """
    channels = value.shape[-1]
    missing = -channels % FULL
    aligned = (channels & -channels) * value.itemsize  # so many bytes of a pixel can always be read at once
    return F.pad(value, (0, missing)) if aligned < SMALL and 3 * missing <= channels else value


@torch.library.custom_op("consilience::convolve_lanes", mutates_args=())
def convolve_lanes(x: Tensor, weight: Tensor, bias: Tensor, padding: list[int], deep: bool) -> Tensor:
    """The result of conv2d on [lanes, batch, ...] images, with channels last; every lane has its own weights.

    Args:
        x: The images.
        weight: [lanes, filters, ...].
        bias: [lanes, filters].
        padding: The rows and the columns of zeros around images.
        deep: Whether the channels of images and weights are their last axis.
    """
    from consilience.kernels import triton_convolution as launches

    kernel = launches.convolve_deep if deep else launches.convolve
    return kernel(x.contiguous(), weight.contiguous(), bias.contiguous(), padding)


@convolve_lanes.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, padding: list[int], deep: bool) -> Tensor:
    first = 2 if deep else 3
    shape = (x.shape[first + i] + 2 * padding[i] - weight.shape[first + i] + 1 for i in (0, 1))
    return x.new_empty(*x.shape[:2], *shape, weight.shape[1])


@torch.library.custom_op("consilience::correlate_lanes", mutates_args=())
def correlate_lanes(
    x: Tensor, grad: Tensor, size: list[int], padding: list[int], deep: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of `convolve_lanes` with respect to its weights and its biases.

    Args:
        x: The images.
        grad: The gradient with respect to the result.
        size: The height and the width of the filters.
        padding: The rows and the columns of zeros around images.
        deep: Whether the channels of images and weights are their last axis.
    """
    from consilience.kernels import triton_convolution as launches

    kernel = launches.correlate_deep if deep else launches.correlate
    return kernel(x.contiguous(), grad.contiguous(), size, padding)


@correlate_lanes.register_fake
def _(x: Tensor, grad: Tensor, size: list[int], padding: list[int], deep: bool) -> tuple[Tensor, Tensor]:
    lanes, filters, channels = x.shape[0], grad.shape[4], x.shape[4 if deep else 2]
    shape = (*size, channels) if deep else (channels, *size)
    return x.new_empty(lanes, filters, *shape), grad.new_empty(lanes, filters)


@convolve_lanes.register_vmap
def _(
    info: Any, dims: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor, *rest: Any
) -> tuple[Tensor, int]:
    found = convolve_lanes(*merged(info, dims, (x, weight, bias)), *rest)
    return found.unflatten(0, (info.batch_size, -1)), 0


@correlate_lanes.register_vmap
def _(
    info: Any, dims: tuple[Any, ...], x: Tensor, grad: Tensor, *rest: Any
) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    found = correlate_lanes(*merged(info, dims, (x, grad)), *rest)
    return tuple(value.unflatten(0, (info.batch_size, -1)) for value in found), (0, 0)
