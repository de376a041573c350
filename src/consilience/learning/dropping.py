"""Dropout of many clients at once. Masks are hashes: they are never in memory, nor kept for gradients.

On a GPU it is a Triton kernel; elsewhere, and for float64, torch computes the same.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from consilience.kernels.lanes import for_triton, lanes_first
from consilience.learning.randomness import keyed_bits, salt


def dropped(x: Tensor, key: Tensor, stream: int, probability: float, whole: bool) -> Tensor:
    """Entries (or whole channels) zeroed with a probability below 1, and the others rescaled.

    Args:
        x: [batch, channels, ...].
        key: 0-d int64, the source of the draws.
        stream: A number that tells draws from the same key apart.
        probability: That of a zero.
        whole: Whether channels are dropped as a whole.
    """
    if for_triton(x) and not _of_sequences(x, key, whole):
        return dropped_as_a_lane(x, key, stream, probability, whole)
    return _plain(x, key, stream, probability, whole)


def dropped_as_a_lane(x: Tensor, key: Tensor, stream: int, probability: float, whole: bool) -> Tensor:
    """The same as one operation, which under `vmap` is one for all."""
    # Not by an index, whose gradient is a copy into zeros.
    return _of_lanes(x.unsqueeze(0), key.unsqueeze(0), stream, probability, whole).squeeze(0)


def _of_lanes(x: Tensor, keys: Tensor, stream: int, probability: float, whole: bool) -> Tensor:
    """The same of [lanes, batch, channels, ...] and keys [lanes]."""
    return cast(Tensor, _Drop.apply(x, keys, stream, probability, whole))  # type: ignore[no-untyped-call]


def _plain(x: Tensor, key: Tensor, stream: int, probability: float, whole: bool) -> Tensor:
    """The same for one key or for those of lanes, in torch's operations."""
    return x * kept(x, key, stream, probability, whole).to(x.dtype) / (1 - probability)


def kept(x: Tensor, key: Tensor, stream: int, probability: float, whole: bool) -> Tensor:
    """What dropout leaves, as booleans that expand to the entries; the arguments are those of `dropped`.

    The key may have axes of its own, those of lanes.
    """
    shape = tuple(x.shape[key.ndim :])
    spread = _of_sequences(x, key, whole)
    shape = (*shape[:2], *[1] * (len(shape) - 2)) if whole else shape
    keys = key.reshape(*key.shape, *[1] * len(shape)) if key.ndim else key
    return keyed_bits(keys, stream, shape, x.device, spread=spread) >= _threshold(probability)


def _of_sequences(x: Tensor, key: Tensor, whole: bool) -> bool:
    """Whether the batch may be the second axis, as recurrent layers and transformers take it by default."""
    return x.ndim - key.ndim == 3 and not whole


def _threshold(probability: float) -> int:
    """The least int32 number that keeps an entry."""
    return int((probability - 0.5) * 2**32)


class _Drop(torch.autograd.Function):
    """Dropout of lanes, which is its own gradient; lanes of lanes are more lanes."""

    @staticmethod
    def forward(x: Tensor, keys: Tensor, stream: int, probability: float, whole: bool) -> Tensor:
        last = x.ndim > 3 and x.movedim(2, -1).is_contiguous()
        given = x.movedim(2, -1) if last else x.contiguous()
        out: Tensor = drop_lanes(given, keys, stream, probability, whole, last)
        return out.movedim(-1, 2) if last else out

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, keys, *ctx.rest = inputs
        ctx.save_for_backward(keys)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _of_lanes(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], x: Tensor, keys: Tensor, *rest: Any) -> tuple[Tensor, int]:
        x, keys = lanes_first(x, dims[0], info), lanes_first(keys, dims[1], info)
        return _of_lanes(x.flatten(0, 1), keys.flatten(), *rest).reshape(x.shape), 0


@torch.library.custom_op("consilience::drop_lanes", mutates_args=())
def drop_lanes(x: Tensor, keys: Tensor, stream: int, probability: float, whole: bool, last: bool) -> Tensor:
    """The numbers [lanes, batch, ...] that dropout leaves; entries lie in order.

    Args:
        x: What they are left of; its entries lie in order.
        keys: [lanes] int64.
        stream: A number that tells draws from the same key apart.
        probability: That of a zero.
        whole: Whether channels are dropped as a whole.
        last: Whether channels are the last axis, and not the third.
    """
    if for_triton(x):
        from consilience.kernels import triton_dropout

        kind = (salt(stream), _threshold(probability), 1 / (1 - probability))
        return triton_dropout.drop(x, keys.contiguous(), *kind, whole=whole, last=last)
    out = _plain(x.movedim(-1, 2) if last else x, keys, stream, probability, whole)
    return out.movedim(2, -1).contiguous() if last else out


@drop_lanes.register_fake
def _(x: Tensor, keys: Tensor, stream: int, probability: float, whole: bool, last: bool) -> Tensor:
    return x.new_empty(x.shape)
