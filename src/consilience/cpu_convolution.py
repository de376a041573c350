"""Convolutions with few filters on a CPU, as products of matrices that are neither narrow nor large.

The patches of an image times the filters is a product with as many columns as there are filters: too few to
keep a core busy, and every number of the image is copied once for each weight of a filter. Here a patch is
wide enough for some neighbouring outputs of a row, and the filters, slid along it, give all of them at once.
Some products are with zeros, and yet all is faster, the copying above all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]
Map = Callable[[Tensor], Tensor]

FILTERS, SIZE = 20, 5
"""At most so many filters, at least so wide: of others, torch's own kernels were measured to be faster."""
COLUMNS = 80
"""Of a product, at most. With more of them, more is spent on zeros than is won."""


def fits(x: Tensor, weight: Tensor, padding: Pair) -> bool:
    """Whether images [batch, ...] and filters are such that this was measured to be the faster way.

    With gradients by a tenth to a third on one core, and 2 to 3 times where many clients have filters of
    their own. A row that can be divided into short groups only is left to torch.
    """
    if not (x.is_cpu and x.ndim == 4 and weight.shape[0] <= FILTERS and weight.shape[3] >= SIZE):
        return False
    width = x.shape[3] + 2 * padding[1] - weight.shape[3] + 1
    return _together(weight.shape[0], width) * weight.shape[0] > COLUMNS / 2


def _together(filters: int, width: int) -> int:
    """How many neighbouring outputs one patch gives; they divide a row of outputs."""
    counts = range(1, min(width, COLUMNS // filters) + 1)
    return max((count for count in counts if width % count == 0), default=1)


@dataclass(frozen=True)
class _Patches:
    """Patches for some neighbouring outputs; in memory, images and filters have their channels last."""

    channels: int
    height: int
    """Of an image, with its padding."""
    width: int
    size: Pair
    """Of a filter."""
    together: int
    """How many outputs."""

    @property
    def rows(self) -> int:
        """Of outputs."""
        return self.height - self.size[0] + 1

    @property
    def groups(self) -> int:
        """Of outputs in a row."""
        return (self.width - self.size[1] + 1) // self.together

    @property
    def span(self) -> int:
        """The numbers of a row of a patch."""
        return (self.size[1] + self.together - 1) * self.channels

    @property
    def numbers(self) -> int:
        """Of a patch."""
        return self.size[0] * self.span

    def cut(self, images: Tensor) -> Tensor:
        """[images, channels, height, width] to [patches, numbers]."""
        line, step = self.width * self.channels, self.together * self.channels
        shape = (len(images), self.rows, self.groups, self.size[0], self.span)
        last = images.contiguous(memory_format=torch.channels_last)
        return last.as_strided(shape, (self.height * line, line, step, line, 1)).reshape(-1, self.numbers)

    def paste(self, patches: Tensor) -> Tensor:
        """The adjoint of `cut`: what patches say about the same number is added up."""
        given = patches.reshape(-1, self.rows, self.groups * self.size[0], self.span)
        line, step = self.width * self.channels, self.together * self.channels
        images = given.new_zeros(len(given), self.height, line)
        offsets = (group * step + row * line for group in range(self.groups) for row in range(self.size[0]))
        for offset, values in zip(offsets, given.unbind(2), strict=True):
            images.as_strided(values.shape, images.stride(), offset).add_(values)
        return images.reshape(-1, self.height, self.width, self.channels).permute(0, 3, 1, 2)

    def _slots(self, slid: Tensor) -> Tensor:
        """Where filters are within slid ones: [outputs, filters, rows, numbers of a row]."""
        shape = (self.together, slid.shape[1], self.size[0], self.size[1] * self.channels)
        strides = (slid.shape[1] * self.numbers + self.channels, self.numbers, self.span, 1)
        return slid.as_strided(shape, strides)

    def slide(self, filters: Tensor) -> Tensor:
        """[filters, channels, height, width] to [filters, outputs, numbers of a patch]."""
        slid = filters.new_zeros(self.together, len(filters), self.numbers)
        self._slots(slid).copy_(filters.permute(0, 2, 3, 1).flatten(2))
        return slid.transpose(0, 1)

    def gather(self, slid: Tensor) -> Tensor:
        """The adjoint of `slide`."""
        total = self._slots(slid.transpose(0, 1).contiguous()).sum(0)
        return total.reshape(-1, *self.size, self.channels).permute(0, 3, 1, 2)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    """conv2d."""
    if any(padding):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    size = (weight.shape[2], weight.shape[3])
    together = _together(len(weight), x.shape[3] - size[1] + 1)
    form = _Patches(x.shape[1], x.shape[2], x.shape[3], size, together)
    patches = _linear(x, form.cut, form.paste)
    slid = _linear(weight, form.slide, form.gather).transpose(0, 1).flatten(0, 1)
    repeated = None if bias is None else bias.expand(together, -1).reshape(-1)
    outputs = F.linear(patches, slid, repeated)
    return outputs.reshape(len(x), form.rows, form.groups * together, len(weight)).permute(0, 3, 1, 2)


def _linear(rows: Tensor, there: Map, back: Map) -> Tensor:
    return cast(Tensor, _Linear.apply(rows, there, back))  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    """A linear map of every row of a tensor. Its derivative is its adjoint, whose derivative it is."""

    @staticmethod
    def forward(rows: Tensor, there: Map, back: Map) -> Tensor:
        return there(rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.there, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _linear(grad, ctx.back, ctx.there), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], rows: Tensor, there: Map, back: Map) -> tuple[Tensor, int]:
        merged = _linear(rows.movedim(dims[0], 0).flatten(0, 1), there, back)
        return merged.reshape(info.batch_size, -1, *merged.shape[1:]), 0
