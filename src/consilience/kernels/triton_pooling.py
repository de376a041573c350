"""Triton kernels: max-pooling of two by two pixels, of images with channels last in memory.

A row is one of windows, in any image. A line, the pixels of all channels of a row, lies in one piece, and so
do the two lines of pixels that its windows have. All of it is bound by memory: every pixel is moved once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, int8

from consilience.kernels.launching import launch

ENTRIES, ACROSS = 1024, 128
"""How many numbers a program has, and how many of a line at most."""


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tile(rows, LINE: tl.constexpr, R: tl.constexpr, M: tl.constexpr):
    """Rows, places in their lines, and which of them there are."""
    row = (tl.program_id(0).to(tl.int64) * R + tl.arange(0, R))[:, None]
    m = (tl.program_id(1) * M + tl.arange(0, M))[None, :]
    return row, m, (row < rows) & (m < LINE)


@triton.jit(do_not_specialize=["rows"])
def _pool(
    x, values, places, rows,
    LINE: tl.constexpr, CHANNELS: tl.constexpr, RELU: tl.constexpr,
    R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    row, m, use = _tile(rows, LINE, R, M)
    first = x + row * (4 * LINE) + m // CHANNELS * (2 * CHANNELS) + m % CHANNELS
    a = tl.load(first, mask=use, other=0.0).to(tl.float32)
    b = tl.load(first + CHANNELS, mask=use, other=0.0).to(tl.float32)
    c = tl.load(first + 2 * LINE, mask=use, other=0.0).to(tl.float32)
    d = tl.load(first + 2 * LINE + CHANNELS, mask=use, other=0.0).to(tl.float32)
    above, below = _larger(a, b), _larger(c, d)
    value = _larger(above, below)
    place = tl.where(below > above, tl.where(d > c, 3, 2), tl.where(b > a, 1, 0))
    if RELU:
        place = tl.where(value > 0, place, -1)
        value = tl.where(value < 0, 0.0, value)  # not maximum: what is not a number stays visible
    tl.store(values + row * LINE + m, value, mask=use)
    tl.store(places + row * LINE + m, place.to(tl.int8), mask=use)


@triton.jit(do_not_specialize=["rows"])
def _take(
    x, places, out, rows,
    LINE: tl.constexpr, CHANNELS: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    row, m, use = _tile(rows, LINE, R, M)
    place = tl.load(places + row * LINE + m, mask=use, other=-1).to(tl.int32)
    first = x + row * (4 * LINE) + m // CHANNELS * (2 * CHANNELS) + m % CHANNELS
    own = first + place // 2 * (2 * LINE) + place % 2 * CHANNELS
    tl.store(out + row * LINE + m, tl.load(own, mask=use & (place >= 0), other=0.0), mask=use)


@triton.jit(do_not_specialize=["rows"])
def _put(
    values, places, out, of_image, of_row, of_column, of_channel, rows,
    HEIGHT: tl.constexpr, LINE: tl.constexpr, CHANNELS: tl.constexpr,
    R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Places count pixels of a line here: each is written once, next to its neighbour."""
    row, m, use = _tile(rows, 2 * LINE, R, M)
    column, channel, second = m // (2 * CHANNELS), m % CHANNELS, m // CHANNELS % 2
    place = tl.load(places + row * LINE + column * CHANNELS + channel, mask=use, other=-1).to(tl.int32)
    own = (
        values + row // HEIGHT * of_image + row % HEIGHT * of_row + column * of_column + channel * of_channel
    )
    value = tl.load(own, mask=use, other=0.0)
    tl.store(out + row * (4 * LINE) + m, tl.where(place == second, value, 0.0), mask=use)
    tl.store(out + row * (4 * LINE) + 2 * LINE + m, tl.where(place == second + 2, value, 0.0), mask=use)


def pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """The maxima of images [..., height, width, channels] that lie in order, and their places."""
    *lanes, height, width, channels = x.shape
    values = x.new_empty(*lanes, height // 2, width // 2, channels)
    places = values.new_empty(values.shape, dtype=int8)
    rows, line = _rows(places)
    grid, tile = _cut(rows, line)
    launch(_pool, grid, x, values, places, rows, line, channels, relu, *tile)
    return values, places


def take(x: Tensor, places: Tensor) -> Tensor:
    """The pixels of images at places, both of which lie in order."""
    rows, line = _rows(places)
    grid, tile = _cut(rows, line)
    out = x.new_empty(places.shape)
    launch(_take, grid, x, places, out, rows, line, places.shape[-1], *tile)
    return out


def put(values: Tensor, places: Tensor) -> Tensor:
    """The images with values, wherever they lie, at places, which lie in order."""
    *lanes, height, width, channels = places.shape
    rows, line = _rows(places)
    grid, tile = _cut(rows, 2 * line)
    images = values.reshape(-1, height, width, channels)
    out = values.new_empty(*lanes, 2 * height, 2 * width, channels)
    launch(_put, grid, images, places, out, *images.stride(), rows, height, line, channels, *tile)
    return out


def _rows(places: Tensor) -> tuple[int, int]:
    """How many rows of windows there are, and how many numbers each has."""
    line = places.shape[-2] * places.shape[-1]
    return places.numel() // line, line


def _cut(rows: int, line: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many programs there are, and how many rows and numbers of a line each has."""
    across = min(ACROSS, triton.next_power_of_2(line))
    deep = ENTRIES // across
    return (triton.cdiv(rows, deep), triton.cdiv(line, across)), (deep, across)
