"""Max-pooling of images that lie in memory as convolutions leave them.

That is with the batch last on a CPU (`cpu_convolution`) and with channels last on a GPU (`gpu_pooling`).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from consilience.kernels import gpu_pooling
from consilience.kernels.lanes import lane_by_lane
from consilience.torch_internals import recast


class Pooling(nn.MaxPool2d):
    """The larger of two neighbours along each axis; of equal ones the first, as torch has it."""

    relu: bool
    """Whether a ReLU comes with it: before or after, which is the same."""

    @classmethod
    def of(cls, plain: nn.MaxPool2d, *, relu: bool = False) -> Pooling:
        """A plain layer as one of these."""
        layer = recast(cls, plain)
        layer.relu = relu
        return layer

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Whether a layer takes the maxima of two by two neighbours."""
        return (
            type(layer) is nn.MaxPool2d
            and layer.kernel_size in (2, (2, 2))
            and layer.stride in (2, (2, 2))
            and layer.padding in (0, (0, 0))
            and layer.dilation in (1, (1, 1))
            and not layer.ceil_mode
            and not layer.return_indices
        )

    def forward(self, x: Tensor) -> Tensor:
        """The maxima of images [batch, channels, height, width], with half the height and width."""
        even = x.ndim == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
        if even and x.is_cuda and x.stride(1) == 1:
            return gpu_pooling.pool(x, self.relu)
        if even and x.is_cpu and x.stride(0) == 1:
            found = _larger(_larger(x.permute(2, 1, 3, 0), 2), 0).permute(3, 1, 0, 2)
        else:
            found = cast(Tensor, super().forward(x))
        return found.relu() if self.relu else found


def _larger(x: Tensor, axis: int) -> Tensor:
    return cast(Tensor, _Larger.apply(x, axis))  # type: ignore[no-untyped-call]


def _at_larger(x: Tensor, values: Tensor, axis: int, back: bool) -> Tensor:
    return cast(Tensor, _AtLarger.apply(x, values, axis, back))  # type: ignore[no-untyped-call]


def _pairs(x: Tensor, axis: int) -> tuple[Tensor, ...]:
    """The first and the second of every two neighbours along an axis."""
    return x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :]).unbind(axis + 1)


class _Larger(torch.autograd.Function):
    """The larger of every two neighbours along an axis."""

    @staticmethod
    def forward(x: Tensor, axis: int) -> Tensor:
        return torch.maximum(*_pairs(x, axis))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.axis = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _at_larger(x, grad, ctx.axis, True), None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        return lane_by_lane(_larger, info, dims, given)


class _AtLarger(torch.autograd.Function):
    """The values at the places where `x` is the larger of two neighbours.

    `back` is the adjoint: values are put there, and zeros where `x` is the smaller one.
    """

    @staticmethod
    def forward(x: Tensor, values: Tensor, axis: int, back: bool) -> Tensor:
        first, second = _pairs(x, axis)
        if not back:
            of_first, of_second = _pairs(values, axis)
            return torch.where(second > first, of_second, of_first)
        result = torch.empty_like(x)
        to_first, to_second = _pairs(result, axis)
        torch.gt(second, first, out=to_second)  # 1 or 0: masks of another type cost far more
        to_second.mul_(values)
        torch.sub(values, to_second, out=to_first)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, _, ctx.axis, ctx.back = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return None, _at_larger(x, grad, ctx.axis, not ctx.back), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        return lane_by_lane(_at_larger, info, dims, given)
