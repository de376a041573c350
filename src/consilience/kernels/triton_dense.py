"""Triton kernels: dense layers of many lanes, each with weights of its own.

A lane is the place of one client in a stacked computation. A step of small batches is bound by memory: every
weight is used for a few rows only. So weights are read once forward, once backward, and once where they are
moved: there a tile of the gradient is computed in registers and used at once, and never written.

Sizes are constants of a kernel: how wide it may read depends on what they are multiples of. Tiles depend on
nothing but sizes: results must repeat.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from consilience.kernels import descent
from consilience.kernels.descent import Update
from consilience.kernels.launching import launch

NARROW = 32
"""The most outputs of a layer whose weights are the right side of the product, which may be small."""


class Tiling(NamedTuple):
    """How a kernel cuts its work."""

    side: int
    """How many outputs (forward, and of the gradient) or inputs (backward) of a layer a program has."""
    depth: int
    """How many terms of a sum are read at once."""
    warps: int = 4
    stages: int = 3


@triton.jit
def _inputs(places, use, shift, scale, SCALED: tl.constexpr):
    """Inputs of a layer, computed from bytes where they are scaled. What is not used may be anything."""
    if SCALED:
        pixels = tl.load(places, mask=use, other=0)
        return (pixels.to(tl.float32) - tl.load(shift)) / tl.load(scale)
    else:  # noqa: RET505  (a kernel's branches are chosen before it is compiled)
        return tl.load(places, mask=use, other=0.0)


@triton.jit
def _forward(
    x, weight, bias, shift, scale, out,
    ROWS: tl.constexpr, INS: tl.constexpr, OUTS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    SCALED: tl.constexpr,
    B: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """out[b, n] = bias[n] + sum over k of x[b, k] weight[n, k]."""
    lane = tl.program_id(1).to(tl.int64)
    tiles: tl.constexpr = (OUTS + N - 1) // N
    n = (tl.program_id(0) % tiles) * N + tl.arange(0, N)
    b = (tl.program_id(0) // tiles) * B + tl.arange(0, B)
    xs = x + lane * (ROWS * INS) + (b * INS)[:, None]
    weights = weight + lane * (OUTS * INS) + (n * INS)[:, None]
    sums = tl.zeros((N, B) if TURN else (B, N), dtype=tl.float32)
    for first in range(0, INS, K):
        k = first + tl.arange(0, K)
        use = (b < ROWS)[:, None] & (k < INS)[None, :]
        some = _inputs(xs + k[None, :], use, shift, scale, SCALED)
        use = (n < OUTS)[:, None] & (k < INS)[None, :]
        of = tl.load(weights + k[None, :], mask=use, other=0.0).to(some.dtype)
        if TURN:
            sums = tl.dot(of, tl.trans(some), sums, input_precision=PRECISION)
        else:
            sums = tl.dot(some, tl.trans(of), sums, input_precision=PRECISION)
    if TURN:
        sums = tl.trans(sums)
    if BIAS:
        sums += tl.load(bias + lane * OUTS + n, mask=n < OUTS, other=0.0).to(tl.float32)[None, :]
    if RELU:
        sums = tl.where(sums < 0, 0.0, sums)  # not maximum: what is not a number stays visible
    place = out + lane * (ROWS * OUTS) + (b * OUTS)[:, None] + n[None, :]
    tl.store(place, sums, mask=(b < ROWS)[:, None] & (n < OUTS)[None, :])


@triton.jit
def _backward(
    grad, weight, seen, out,
    ROWS: tl.constexpr, INS: tl.constexpr, OUTS: tl.constexpr, SEEN: tl.constexpr,
    B: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[b, k] = sum over n of grad[b, n] weight[n, k], where seen[b, k] > 0."""
    lane = tl.program_id(1).to(tl.int64)
    tiles: tl.constexpr = (INS + K - 1) // K
    k = (tl.program_id(0) % tiles) * K + tl.arange(0, K)
    b = (tl.program_id(0) // tiles) * B + tl.arange(0, B)
    grads = grad + lane * (ROWS * OUTS) + (b * OUTS)[:, None]
    weights = weight + lane * (OUTS * INS) + k[None, :]
    sums = tl.zeros((B, K), dtype=tl.float32)
    for first in range(0, OUTS, N):
        n = first + tl.arange(0, N)
        some = tl.load(grads + n[None, :], mask=(b < ROWS)[:, None] & (n < OUTS)[None, :], other=0.0)
        use = (n < OUTS)[:, None] & (k < INS)[None, :]
        of = tl.load(weights + (n * INS)[:, None], mask=use, other=0.0).to(some.dtype)
        sums = tl.dot(some, of, sums, input_precision=PRECISION)
    place = lane * (ROWS * INS) + (b * INS)[:, None] + k[None, :]
    use = (b < ROWS)[:, None] & (k < INS)[None, :]
    if SEEN:
        sums = tl.where(tl.load(seen + place, mask=use, other=0.0) > 0, sums, 0.0)
    tl.store(out + place, sums, mask=use)


@triton.jit
def product(
    grad, x, shift, scale, row, column,
    ROWS: tl.constexpr, INS: tl.constexpr, OUTS: tl.constexpr, SCALED: tl.constexpr,
    B: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient with respect to weights: sums over b of grad[b, n] x[b, k], in one row.

    As one row it has the layout in which memory is read and written best; as a matrix it would keep that of
    the hardware's products, and everything that is computed with it would be brought into that, too.
    """
    n = row + tl.arange(0, N)
    k = column + tl.arange(0, K)
    sums = tl.zeros((N, K), dtype=tl.float32)
    for first in range(0, ROWS, B):
        b = first + tl.arange(0, B)
        use = (b < ROWS)[:, None] & (k < INS)[None, :]
        inputs = _inputs(x + (b * INS)[:, None] + k[None, :], use, shift, scale, SCALED)
        use = (b < ROWS)[:, None] & (n < OUTS)[None, :]
        grads = tl.load(grad + (b * OUTS)[:, None] + n[None, :], mask=use, other=0.0)
        sums = tl.dot(tl.trans(grads), inputs, sums, input_precision=PRECISION)
    return tl.reshape(sums, (N * K,))


@triton.jit
def column_sums(grad, column, ROWS: tl.constexpr, OUTS: tl.constexpr, B: tl.constexpr, N: tl.constexpr):
    """The sums over b of grad[b, n]: the gradient with respect to biases."""
    n = column + tl.arange(0, N)
    sums = tl.zeros((N,), dtype=tl.float32)
    for first in range(0, ROWS, B):
        b = first + tl.arange(0, B)
        use = (b < ROWS)[:, None] & (n < OUTS)[None, :]
        sums += tl.sum(
            tl.load(grad + (b * OUTS)[:, None] + n[None, :], mask=use, other=0.0).to(tl.float32), 0
        )
    return sums


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shift: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    relu: bool,
    tiling: Tiling | None = None,
    turn: bool | None = None,
) -> Tensor:
    """The outputs [lanes, rows, outs] of a layer for x [lanes, rows, ins] and weights [lanes, outs, ins].

    Where a shift is given, `x` are bytes, and the inputs (x - shift) / scale.
    """
    (lanes, rows, ins), outs = x.shape, weight.shape[1]
    wide = outs > NARROW
    cut = tiling or (Tiling(64, side(ins, 32), 4, 6) if wide else Tiling(side(outs, 16), side(ins, 64), 4, 4))
    turn = wide if turn is None else turn
    block = side(rows, 128)
    out = (x if shift is None else shift).new_empty(lanes, rows, outs)
    some = (out if one is None else one for one in (bias, shift, scale))  # what is absent is not read
    launch(
        _forward, (triton.cdiv(outs, cut.side) * triton.cdiv(rows, block), lanes),
        x, weight, *some, out, rows, ins, outs, bias is not None, relu, shift is not None,
        B=block, N=cut.side, K=cut.depth, PRECISION=precision(), TURN=turn,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def backward(grad: Tensor, weight: Tensor, seen: Tensor | None, *, tiling: Tiling | None = None) -> Tensor:
    """The gradient [lanes, rows, ins] with respect to a layer's inputs; 0 where `seen` is not above 0."""
    (lanes, rows, outs), ins = grad.shape, weight.shape[2]
    cut = tiling or Tiling(side(ins, 32), side(outs, 32), 2, 3)
    block = side(rows, 128)
    out = grad.new_empty(lanes, rows, ins)
    launch(
        _backward, (triton.cdiv(ins, cut.side) * triton.cdiv(rows, block), lanes),
        grad, weight, grad if seen is None else seen, out, rows, ins, outs, seen is not None,
        B=block, N=cut.depth, K=cut.side, PRECISION=precision(),
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def descend(
    tensors: Sequence[Tensor],
    updates: Sequence[Update],
    *,
    cut: Callable[[int, int], descent.Tile] = descent.tile,
    warps: int = 4,
) -> None:
    """Move tensors by updates, in one launch."""
    source = descent.kernel(updates, [descent.Form.of(value) for value in tensors], precision(), cut)
    launch(_compiled(source.text), (source.programs,), *tensors, num_warps=warps, num_stages=3)


@cache
def _compiled(text: str) -> Any:
    """The kernel of a text, which Triton reads again where Python keeps the lines of its sources."""
    name = f"<{descent.digest(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, name, "exec"), names)
    return names["descend"]


def side(count: int, most: int) -> int:
    """The side of a tile: a power of two, no smaller than the hardware's products ask for."""
    return int(min(most, max(16, triton.next_power_of_2(count))))


def precision() -> str:
    """How exact products of full floats are, in Triton's word for it."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
