"""How the kernels for convolutions of many lanes are launched: tiles and parts, chosen by sizes alone."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from consilience.kernels import triton_kernels as kernels
from consilience.kernels.launching import launch

UNITS = 132
"""How many multiprocessors a large GPU has: programs are wanted in multiples of that."""


class Tile(NamedTuple):
    """What a program works on at a time, as was measured to be fast: f filters, k weights and m pixels."""

    f: int
    k: int
    m: int
    warps: int
    stages: int
    """How far loads are ahead of products."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor, padding: list[int]) -> Tensor:
    """The result of conv2d, [lanes, batch, height, width, filters], with weights and biases for every lane.

    The channels of images and weights come before height and width. All tensors are contiguous.
    """
    lanes, batch, channels, height, width = x.shape
    sizes = _sizes(channels, height, width, weight.shape[1], weight.shape[3:], padding)
    stages = 1 if _full(x) else 3
    tile = Tile(_side(sizes["FILTERS"], 64), _side(weight[0, 0].numel(), 32), 128, 4, stages)
    out = x.new_empty(lanes, batch, sizes["OH"], sizes["OW"], sizes["FILTERS"])
    tiles = triton.cdiv(sizes["OH"] * sizes["OW"], tile.m) * triton.cdiv(sizes["FILTERS"], tile.f)
    shares, share = _parts(batch, 1, tiles * lanes, 32 * UNITS)
    launch(
        kernels.convolve, (tiles, shares, lanes),
        x, weight, bias, out, batch, share, **sizes, F=tile.f, K=tile.k, M=tile.m,
        PRECISION=_precision("tf32"), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def convolve_deep(x: Tensor, weight: Tensor, bias: Tensor, padding: list[int]) -> Tensor:
    """What `convolve` computes, where the channels of images and weights come last."""
    lanes, batch, height, width, channels = x.shape
    sizes = _sizes(channels, height, width, weight.shape[1], weight.shape[2:4], padding)
    tile = _as_read(_tile_of_products(sizes["FILTERS"], channels, _full(x)), x)
    out = x.new_empty(lanes, batch, sizes["OH"], sizes["OW"], sizes["FILTERS"])
    pixels = batch * sizes["OH"] * sizes["OW"]
    launch(
        kernels.convolve_deep, (triton.cdiv(pixels, tile.m), triton.cdiv(sizes["FILTERS"], tile.f), lanes),
        x, weight, bias, out, batch, **sizes, F=tile.f, K=tile.k, M=tile.m, V=_piece(x),
        PRECISION=_precision("tf32"), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def correlate(x: Tensor, grad: Tensor, size: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    """The gradients of `convolve` with respect to its weights and biases; `size` is that of the filters."""
    lanes, batch, channels, height, width = x.shape
    sizes = _sizes(channels, height, width, grad.shape[4], size, padding)
    filters, depth = sizes["FILTERS"], channels * size[0] * size[1]
    tile = Tile(_side(filters, 64), _side(depth, 32), 64, 2, 1)
    tiles, pixels = triton.cdiv(filters, tile.f), triton.cdiv(sizes["OH"] * sizes["OW"], tile.m)
    shares, share = _parts(batch, 1, tiles * pixels * lanes, 16 * UNITS)
    parts = shares * pixels
    of_weight, of_bias = _room(x, lanes, parts, filters, (channels, *size))
    launch(
        kernels.correlate, (parts, tiles, lanes),
        x, grad, of_weight, of_bias, batch, share, **sizes, F=tile.f, K=tile.k, M=tile.m,
        PRECISION=_precision("tf32"), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return _summed(of_weight, x.dtype), _summed(of_bias, x.dtype)


def correlate_deep(x: Tensor, grad: Tensor, size: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    """What `correlate` computes, where the channels of images and of weights come last."""
    lanes, batch, height, width, channels = x.shape
    sizes = _sizes(channels, height, width, grad.shape[4], size, padding)
    filters, depth = sizes["FILTERS"], channels * size[0] * size[1]
    tile, wanted = _tile_of_sums(filters, depth, _full(x))
    tile = _as_read(tile, x)
    tiles = triton.cdiv(filters, tile.f) * triton.cdiv(depth, tile.k)
    parts, share = _parts(batch * sizes["OH"] * sizes["OW"], 4 * tile.m, tiles * lanes, wanted)
    of_weight, of_bias = _room(x, lanes, parts, filters, (*size, channels))
    launch(
        kernels.correlate_deep, (parts, tiles, lanes),
        x, grad, of_weight, of_bias, batch, share, **sizes, F=tile.f, K=tile.k, M=tile.m, V=_piece(x),
        PRECISION=_precision("turned"), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return _summed(of_weight, x.dtype), _summed(of_bias, x.dtype)


def square_deep(
    x: Tensor, grad: Tensor, weight: Tensor, size: list[int], padding: list[int]
) -> tuple[Tensor, Tensor]:
    """The sums over images of weight times squared gradient, where `correlate_deep` adds gradients up.

    Args:
        x: [lanes, batch, height, width, channels] the images.
        grad: [lanes, batch, height, width, filters] the gradient with respect to the result.
        weight: [lanes, batch] how much an image counts.
        size: The height and the width of the filters.
        padding: The rows and the columns of zeros around images.
    """
    lanes, batch, height, width, channels = x.shape
    sizes = _sizes(channels, height, width, grad.shape[4], size, padding)
    filters, depth = sizes["FILTERS"], channels * size[0] * size[1]
    tile, wanted = _tile_of_squares(filters, depth)
    tiles = triton.cdiv(filters, tile.f) * triton.cdiv(depth, tile.k)
    parts, share = _parts(batch, 1, tiles * lanes, wanted)
    of_weight = torch.empty(lanes, parts, filters, *size, channels, dtype=torch.float32, device=x.device)
    of_bias = of_weight.new_empty(lanes, parts, filters)
    launch(
        kernels.square_deep, (parts, tiles, lanes),
        x, grad, weight, of_weight, of_bias, batch, share, **sizes, F=tile.f, K=tile.k, M=tile.m, V=_piece(x),
        PRECISION=_precision("turned"), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return _summed(of_weight, torch.float32), _summed(of_bias, torch.float32)


def _sizes(
    channels: int, height: int, width: int, filters: int, size: Sequence[int], padding: Sequence[int]
) -> dict[str, int]:
    """The constants of a kernel."""
    return {
        "C": channels, "H": height, "W": width, "FILTERS": filters,
        "OH": height + 2 * padding[0] - size[0] + 1, "OW": width + 2 * padding[1] - size[1] + 1,
        "KY": size[0], "KX": size[1], "PY": padding[0], "PX": padding[1],
    }  # fmt: skip


def _parts(total: int, least: int, programs: int, wanted: int) -> tuple[int, int]:
    """How many parts a long range is cut into, and how long each is: at least so much, if there is as much.

    They run side by side. The cut depends on nothing but the sizes: results must repeat.
    """
    parts = max(1, min(wanted // programs, total // least))
    share = triton.cdiv(triton.cdiv(total, parts), least) * least
    return triton.cdiv(total, share), share


def _room(x: Tensor, lanes: int, parts: int, filters: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Memory for the parts of gradients: full floats, unless a single part is the result already."""
    dtype = x.dtype if parts == 1 else torch.float32
    of_weight = torch.empty(lanes, parts, filters, *shape, dtype=dtype, device=x.device)
    return of_weight, of_weight.new_empty(lanes, parts, filters)


def _summed(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over parts, [lanes, parts, ...], in the order of the parts."""
    if parts.shape[1] == 1:
        return parts.squeeze(1)
    out = torch.empty(parts.shape[0], *parts.shape[2:], dtype=dtype, device=parts.device)
    size = out[0].numel()
    launch(
        kernels.total,
        (triton.cdiv(size, 256), parts.shape[0]),
        parts,
        out,
        parts.shape[1],
        size,
        N=256,
        num_warps=4,
    )
    return out


def _tile_of_products(filters: int, channels: int, full: bool) -> Tile:
    """The tile of `convolve_deep`, whose sums are over the weights of a filter."""
    f = _side(filters, 128)
    if full and f == 32:
        return Tile(f, 32, 256, 8, 3)
    k, stages = (32, 3) if full else (64, 3) if channels % 64 == 0 else (32, 4)
    return Tile(f, k, 128, 8 if f == 128 else 4, stages)


def _tile_of_sums(filters: int, depth: int, full: bool) -> tuple[Tile, int]:
    """The tile of `correlate_deep`, whose sums are over pixels, and how many programs are wanted.

    Parts of sums have to be written and added up, so that more of them pay for full floats alone.
    """
    f = _side(filters, 128)
    short, long = _side(depth, 64), _side(depth, 128)
    if full and f == 128:
        return Tile(f, long, 32, 8, 3), 2 * UNITS
    if full:
        return Tile(f, short, 64, 4, 1), 8 * UNITS if f == 64 else 16 * UNITS
    return Tile(f, long, 64, 4, 3) if f == 128 else Tile(f, short, 64, 4, 4), 2 * UNITS


def _tile_of_squares(filters: int, depth: int) -> tuple[Tile, int]:
    """The tile of `square_deep`, which begins anew with every image, and how many programs are wanted."""
    f = _side(filters, 64)
    if depth <= 32:
        return Tile(f, 32, 64, 2, 1), 16 * UNITS
    return Tile(f, 128, 32 if f <= 32 else 64, 4, 1), 16 * UNITS


def _as_read(tile: Tile, x: Tensor) -> Tile:
    """The tile without loads ahead of products where images are read in small pieces.

    Loads ahead go past the registers. With pieces of 4 bytes that took ten times as long, with 8 bytes of
    16-bit numbers half as long again; with two full floats hardly longer.
    """
    least = 8 if _full(x) else 16
    return tile if _piece(x) * x.itemsize >= least else tile._replace(stages=1)


def _full(x: Tensor) -> bool:
    """Whether numbers are full floats and not ones of 16 bits."""
    return x.itemsize == 4


def _side(count: int, most: int) -> int:
    """The side of a tile: a power of two, no smaller than the hardware's products ask for."""
    return int(min(most, max(16, triton.next_power_of_2(count))))


def _piece(x: Tensor) -> int:
    """How many channels, which come last, always lie in one aligned piece of at most 16 bytes."""
    channels = x.shape[-1]
    return min(channels & -channels, 16 // x.itemsize)


def _precision(fast: str) -> str:
    """How products are taken: in full if torch is to do so, else as it is fast."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else fast
