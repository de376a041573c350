"""Dense layers of many clients at once, each with weights of its own, as operations that torch.compile knows.

On a GPU they are Triton kernels; elsewhere, and for float64, torch computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from consilience.kernels import descent
from consilience.kernels.lanes import for_triton


@torch.library.custom_op("consilience::dense_lanes", mutates_args=())
def dense_lanes(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, shift: Tensor | None, scale: Tensor | None
) -> Tensor:
    """The outputs [lanes, rows, outs] of dense layers, in the type of their inputs.

    Args:
        x: [lanes, rows, ins].
        weight: [lanes, outs, ins].
        bias: [lanes, outs].
        relu: Whether outputs below 0 become 0.
        shift: One number. Where it is given, `x` are bytes, and the inputs (x - shift) / scale.
        scale: One number.
    """
    if for_triton(x, weight):
        from consilience.kernels import triton_dense as triton_kernels

        bias = None if bias is None else bias.contiguous()
        return triton_kernels.forward(x.contiguous(), weight.contiguous(), bias, shift, scale, relu=relu)
    if shift is not None and scale is not None:
        x = descent.scaled(x, shift, scale)
    out = torch.bmm(x, weight.to(x.dtype).transpose(1, 2))
    if bias is not None:
        out = out + bias.to(x.dtype)[:, None]
    return out.relu() if relu else out


@dense_lanes.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, shift: Tensor | None, scale: Tensor | None
) -> Tensor:
    return (x if shift is None else shift).new_empty(*x.shape[:2], weight.shape[1])


@torch.library.custom_op("consilience::dense_lanes_backward", mutates_args=())
def dense_lanes_backward(grad: Tensor, weight: Tensor, seen: Tensor | None) -> Tensor:
    """The gradients [lanes, rows, ins] of `dense_lanes` with respect to inputs.

    Args:
        grad: [lanes, rows, outs], the gradients with respect to outputs before their ReLU.
        weight: [lanes, outs, ins].
        seen: Inputs that came out of a ReLU: where they are not above 0, gradients are 0.
    """
    if for_triton(grad, weight):
        from consilience.kernels import triton_dense as triton_kernels

        seen = None if seen is None else seen.contiguous()
        return triton_kernels.backward(grad.contiguous(), weight.contiguous(), seen)
    out = torch.bmm(grad, weight.to(grad.dtype))
    return out if seen is None else torch.where(seen > 0, out, 0)


@dense_lanes_backward.register_fake
def _(grad: Tensor, weight: Tensor, seen: Tensor | None) -> Tensor:
    return grad.new_empty(*grad.shape[:2], weight.shape[2])


@torch.library.custom_op("consilience::descend", mutates_args=("written",))
def descend(written: Sequence[Tensor], given: Sequence[Tensor], updates: str) -> None:
    """Write new values over tensors, all in one launch; gradients of dense layers are never in memory.

    Args:
        written: What is moved.
        given: What is only read.
        updates: How, as `descent.encoded` writes it.
    """
    moves = descent.decoded(updates)
    if not for_triton(*written, *given):
        descent.apply([*written, *given], moves)
        return
    from consilience.kernels import triton_dense as triton_kernels

    operands = {place - len(written) for move in moves for place in move.gradient}
    flat = [value.contiguous() if place in operands else value for place, value in enumerate(given)]
    triton_kernels.descend([*written, *flat], moves)


@descend.register_fake
def _(written: Sequence[Tensor], given: Sequence[Tensor], updates: str) -> None:
    return None
