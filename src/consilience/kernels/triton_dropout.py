"""Triton kernel: dropout of many lanes, whose masks are computed where they are used.

A mask is what `keyed_bits` gives, bit for bit.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from consilience.kernels.launching import launch

ENTRIES = 1024
"""How many numbers a program has."""


@triton.jit
def _mixed(x):
    """A bijective 32-bit hash; products wrap, and the masks make the shifts logical ones."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit(do_not_specialize=["salt", "least"])
def _drop(
    x, keys, out, salt, least, factor,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr, WHOLE: tl.constexpr,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[m] = factor * x[m] where the bits for the lane's key and the place of m are at least `least`."""
    lane = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + lane)
    low, high = (key & 0x7FFFFFFF).to(tl.int32), ((key >> 31) & 0x7FFFFFFF).to(tl.int32)
    if LAST:
        channel, pixel = m // (CHANNELS * PIXELS) * CHANNELS + m % CHANNELS, m // CHANNELS % PIXELS
    else:
        channel, pixel = m // PIXELS, m % PIXELS
    place = channel if WHOLE else channel * PIXELS + pixel
    bits = _mixed(_mixed(place ^ low) ^ (high + salt))
    entries = tl.load(x + lane * SIZE + m, mask=m < SIZE, other=0.0).to(tl.float32)
    tl.store(out + lane * SIZE + m, entries * tl.where(bits >= least, factor, 0.0), mask=m < SIZE)


def drop(x: Tensor, keys: Tensor, salt: int, least: int, factor: float, *, whole: bool, last: bool) -> Tensor:
    """What dropout leaves of x, whose entries lie in order.

    Args:
        x: [lanes, batch, channels, ...], or with channels `last`.
        keys: [lanes] int64.
        salt: What the number of the stream adds to keys.
        least: The least bits that keep an entry.
        factor: What entries that are kept are multiplied by.
        whole: Whether channels are dropped as a whole.
        last: Whether channels are the last axis.
    """
    size = x[0].numel()
    channels = x.shape[-1] if last else math.prod(x.shape[2:3])
    pixels = math.prod(x.shape[2:]) // max(1, channels)
    out = x.new_empty(x.shape)
    if size:
        launch(
            _drop,
            (triton.cdiv(size, ENTRIES), len(x)),
            x,
            keys,
            out,
            salt,
            least,
            factor,
            size,
            channels,
            pixels,
            whole,
            last,
            BLOCK=ENTRIES,
        )
    return out
