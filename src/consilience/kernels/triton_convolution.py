"""Triton kernels: convolutions of many lanes, as products with patches that are gathered on the fly.

A lane is the place of one client in a stacked computation.

The patches of an image are a matrix: entry (k, m) is what the k-th weight of a filter sees at the m-th
pixel of the output. Its place in memory is a sum of one number for k and one for m, so that it costs an
addition to find. Products of full floats want their inner side contiguous in shared memory, those of
bfloat16 do not mind: TURN says which way a tile of patches is read.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056
"""How many programs a launch should have at least: eight for each multiprocessor of a large GPU."""


@triton.jit
def _pixel(m, pixels, stride, height, width, out_width):
    """Where the patch of an output pixel begins; m counts over all images."""
    pixel = m % pixels
    return (m // pixels) * stride + (pixel // out_width) * width + pixel % out_width


@triton.jit
def _tap(k, height, width, KY: tl.constexpr, KX: tl.constexpr):
    """How far into a patch the k-th weight looks."""
    tap = k % (KY * KX)
    return (k // (KY * KX)) * height * width + (tap // KX) * width + tap % KX


@triton.jit
def _convolve(
    x, weight, bias, out, batch, channels, height, width, filters, out_height, out_width,
    KY: tl.constexpr, KX: tl.constexpr, F: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """out[f, m] = bias[f] + sum over k of weight[f, k] patches[k, m]."""
    lane = tl.program_id(2).to(tl.int64)
    pixels = out_height * out_width
    stride = channels * height * width
    total, depth = batch * pixels, channels * KY * KX
    m = tl.program_id(0) * M + tl.arange(0, M)
    f = tl.program_id(1) * F + tl.arange(0, F)
    begin = x + lane * batch * stride + _pixel(m, pixels, stride, height, width, out_width)
    weights = weight + (lane * filters + f) * depth
    products = tl.zeros((F, M), dtype=tl.float32)
    for first in range(0, depth, K):
        k = first + tl.arange(0, K)
        taps = _tap(k, height, width, KY, KX)
        if TURN:
            use = (m < total)[:, None] & (k < depth)[None, :]
            patches = tl.trans(tl.load(begin[:, None] + taps[None, :], mask=use, other=0.0))
        else:
            use = (k < depth)[:, None] & (m < total)[None, :]
            patches = tl.load(begin[None, :] + taps[:, None], mask=use, other=0.0)
        use = (f < filters)[:, None] & (k < depth)[None, :]
        products = tl.dot(
            tl.load(weights[:, None] + k[None, :], mask=use, other=0.0),
            patches,
            products,
            input_precision=PRECISION,
        )
    products += tl.load(bias + lane * filters + f, mask=f < filters, other=0.0).to(tl.float32)[:, None]
    place = out + lane * filters * total + (m // pixels) * filters * pixels + m % pixels
    tl.store(place[None, :] + (f * pixels)[:, None], products, (f < filters)[:, None] & (m < total)[None, :])


@triton.jit
def _convolve_deep(
    x, weight, bias, out, batch, height, width, filters, out_height, out_width,
    C: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, F: tl.constexpr, K: tl.constexpr,
    M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `_convolve` computes, with channels last: a row of a patch lies in one piece."""
    lane = tl.program_id(2).to(tl.int64)
    pixels = out_height * out_width
    total = batch * pixels
    m = tl.program_id(0) * M + tl.arange(0, M)
    f = tl.program_id(1) * F + tl.arange(0, F)
    pixel = m % pixels
    begin = ((m // pixels) * height + pixel // out_width) * width + pixel % out_width
    begin = x + lane * batch * height * width * C + begin * C
    weights = weight + (lane * filters + f) * (KY * KX * C)
    pieces: tl.constexpr = (KX * C + K - 1) // K
    products = tl.zeros((M, F), dtype=tl.float32)
    for step in range(KY * pieces):
        row = step // pieces
        k = (step % pieces) * K + tl.arange(0, K)
        use = (m < total)[:, None] & (k < KX * C)[None, :]
        patches = tl.load(begin[:, None] + (row * width * C + k)[None, :], mask=use, other=0.0)
        use = (f < filters)[:, None] & (k < KX * C)[None, :]
        filtering = tl.load(weights[:, None] + (row * KX * C + k)[None, :], mask=use, other=0.0)
        products = tl.dot(patches, tl.trans(filtering), products, input_precision=PRECISION)
    products += tl.load(bias + lane * filters + f, mask=f < filters, other=0.0).to(tl.float32)[None, :]
    place = out + lane * filters * total + (m // pixels) * filters * pixels + m % pixels
    tl.store(place[:, None] + (f * pixels)[None, :], products, (m < total)[:, None] & (f < filters)[None, :])


@triton.jit
def _correlate(
    x, grad, out, batch, channels, height, width, filters, out_height, out_width, share,
    KY: tl.constexpr, KX: tl.constexpr, F: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """out[part, f, k] = sum over a share of m of grad[f, m] patches[k, m]."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    pixels = out_height * out_width
    stride = channels * height * width
    total, depth = batch * pixels, channels * KY * KX
    tiles = tl.cdiv(depth, K)
    f = (tl.program_id(1) // tiles) * F + tl.arange(0, F)
    k = (tl.program_id(1) % tiles) * K + tl.arange(0, K)
    taps = x + lane * batch * stride + _tap(k, height, width, KY, KX)
    rows = grad + lane * filters * total + f * pixels
    sums = tl.zeros((F, K), dtype=tl.float32)
    end = tl.minimum((part + 1) * share, total)
    for first in range(part * share, end, M):
        m = first + tl.arange(0, M)
        begin = _pixel(m, pixels, stride, height, width, out_width)
        if TURN:
            use = (k < depth)[:, None] & (m < end)[None, :]
            patches = tl.trans(tl.load(taps[:, None] + begin[None, :], mask=use, other=0.0))
        else:
            use = (m < end)[:, None] & (k < depth)[None, :]
            patches = tl.load(taps[None, :] + begin[:, None], mask=use, other=0.0)
        use = (f < filters)[:, None] & (m < end)[None, :]
        place = (m // pixels) * filters * pixels + m % pixels
        grads = tl.load(rows[:, None] + place[None, :], mask=use, other=0.0)
        sums = tl.dot(grads, patches, sums, input_precision=PRECISION)
    row = out + ((lane * tl.num_programs(0) + part) * filters + f) * depth
    tl.store(row[:, None] + k[None, :], sums, mask=(f < filters)[:, None] & (k < depth)[None, :])


@triton.jit
def _correlate_deep(
    x, grad, out, batch, height, width, filters, out_height, out_width, share,
    C: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, F: tl.constexpr, K: tl.constexpr,
    M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `_correlate` computes, for images, gradients and weights with channels last."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    pixels = out_height * out_width
    total = batch * pixels
    pieces: tl.constexpr = (KX * C + K - 1) // K
    tile = tl.program_id(1) % (KY * pieces)
    f = (tl.program_id(1) // (KY * pieces)) * F + tl.arange(0, F)
    k = (tile % pieces) * K + tl.arange(0, K)
    row = tile // pieces
    rows = x + lane * batch * height * width * C + row * width * C
    grads = grad + lane * filters * total
    sums = tl.zeros((F, K), dtype=tl.float32)
    end = tl.minimum((part + 1) * share, total)
    for first in range(part * share, end, M):
        m = first + tl.arange(0, M)
        pixel = m % pixels
        begin = (((m // pixels) * height + pixel // out_width) * width + pixel % out_width) * C
        use = (m < end)[:, None] & (k < KX * C)[None, :]
        patches = tl.load(rows + begin[:, None] + k[None, :], mask=use, other=0.0)
        use = (m < end)[:, None] & (f < filters)[None, :]
        some = tl.load(grads + (m * filters)[:, None] + f[None, :], mask=use, other=0.0)
        sums = tl.dot(tl.trans(some), patches, sums, input_precision=PRECISION)
    begin = out + ((lane * tl.num_programs(0) + part) * filters + f) * (KY * KX * C) + row * KX * C
    tl.store(begin[:, None] + k[None, :], sums, mask=(f < filters)[:, None] & (k < KX * C)[None, :])


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The result of conv2d, without padding, of [lanes, batch, ...] images by [lanes, ...] weights.

    All tensors are contiguous.
    """
    lanes, batch, channels, height, width = x.shape
    filters, size = weight.shape[1], weight.shape[3:]
    shape = (height - size[0] + 1, width - size[1] + 1)
    out = x.new_empty(lanes, batch, filters, *shape)
    block = _side(filters, 128)
    _convolve[triton.cdiv(batch * shape[0] * shape[1], 128), triton.cdiv(filters, block), lanes](
        x, weight, bias, out, batch, channels, height, width, filters, *shape, *size,
        F=block, K=32, M=128, PRECISION=_precision(), TURN=x.dtype == torch.float32,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def convolve_deep(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What `convolve` computes, where the channels of images and weights (not of the result) come last."""
    lanes, batch, height, width, channels = x.shape
    filters, size = weight.shape[1], weight.shape[2:4]
    shape = (height - size[0] + 1, width - size[1] + 1)
    out = x.new_empty(lanes, batch, filters, *shape)
    block = _side(filters, 128)
    _convolve_deep[triton.cdiv(batch * shape[0] * shape[1], 128), triton.cdiv(filters, block), lanes](
        x, weight, bias, out, batch, height, width, filters, *shape,
        C=channels, KY=size[0], KX=size[1], F=block, K=_side(size[1] * channels, 32), M=128,
        PRECISION=_precision(), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def correlate(x: Tensor, grad: Tensor, size: list[int]) -> Tensor:
    """The gradient of `convolve` with respect to its weights, in float32; `size` is that of the filters."""
    lanes, batch, channels, height, width = x.shape
    filters, shape = grad.shape[2], grad.shape[3:]
    total, depth = batch * shape[0] * shape[1], channels * size[0] * size[1]
    block, block_k = _side(filters, 64), _side(depth, 64)
    tiles = triton.cdiv(filters, block) * triton.cdiv(depth, block_k)
    parts, share = _parts(total, lanes * tiles)
    out = torch.empty(lanes, parts, filters, channels, *size, dtype=torch.float32, device=x.device)
    _correlate[parts, tiles, lanes](
        x, grad, out, batch, channels, height, width, filters, *shape, share, *size,
        F=block, K=block_k, M=32, PRECISION=_precision(), TURN=x.dtype == torch.float32,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(1)


def correlate_deep(x: Tensor, grad: Tensor, size: list[int]) -> Tensor:
    """What `correlate` computes, where the channels of images, gradients and the result come last."""
    lanes, batch, height, width, channels = x.shape
    filters, shape = grad.shape[4], grad.shape[2:4]
    low = x.itemsize < 4
    block, block_k = _side(filters, 128 if low else 64), _side(size[1] * channels, 32 if low else 64)
    tiles = triton.cdiv(filters, block) * size[0] * triton.cdiv(size[1] * channels, block_k)
    parts, share = _parts(batch * shape[0] * shape[1], lanes * tiles)
    out = torch.empty(lanes, parts, filters, *size, channels, dtype=torch.float32, device=x.device)
    _correlate_deep[parts, tiles, lanes](
        x, grad, out, batch, height, width, filters, *shape, share,
        C=channels, KY=size[0], KX=size[1], F=block, K=block_k, M=64 if low else 32,
        PRECISION=_precision(), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(1)


def _parts(total: int, programs: int) -> tuple[int, int]:
    """How many parts a long sum is cut into, and of how many terms each.

    They run side by side. The cut depends on nothing but the sizes: results must repeat.
    """
    parts = max(1, min(2 * PROGRAMS // programs, triton.cdiv(total, 256)))
    share = triton.cdiv(triton.cdiv(total, parts), 64) * 64
    return triton.cdiv(total, share), share


def _side(count: int, most: int) -> int:
    """The side of a tile: a power of two, no smaller than the hardware's products ask for."""
    return int(min(most, max(16, triton.next_power_of_2(count))))


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
