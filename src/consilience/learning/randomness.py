"""Randomness is data: every draw comes from a generator keyed by what it is for, never from global state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from consilience.types import IntArray

Numbers = TypeVar("Numbers", Tensor, IntArray)
"""Integers on a device, or on the host."""


def _signed(number: int) -> int:
    """The signed 64-bit integer with the same last 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


_ODD, _FIRST, _SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Purpose(IntEnum):
    """What a stream of random numbers is for. Streams of different purposes never touch."""

    INITIAL_WEIGHTS = 2
    COHORT = 3
    FAILURE = 4
    TRAINING = 5
    DATA_PASS = 6
    TOPOLOGY = 7
    STRAGGLING = 8
    MESSAGE = 9
    CHURN = 10
    WAKING = 11
    LINKS = 12
    COMMON = 13
    FROZEN_WEIGHTS = 14


def generator(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """A generator for one purpose and key, e.g. (round, client)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose, *key))))


@contextmanager
def seeded(key: Tensor) -> Iterator[None]:
    """A context in which torch's generators follow from a key; afterwards they are as before."""
    with torch.random.fork_rng(devices=[key.device.index] if key.is_cuda else []):
        torch.default_generator.manual_seed(int(key))
        if key.is_cuda:
            torch.cuda.manual_seed(int(key))
        yield


@contextmanager
def torch_seed(seed: int, purpose: Purpose, *key: int) -> Iterator[None]:
    """A context in which torch's default generator is keyed; afterwards it is as before."""
    drawn = int(generator(seed, purpose, *key).integers(2**63))
    with torch.random.fork_rng(devices=[]):
        if torch.accelerator.is_available():
            torch.manual_seed(drawn)  # for who draws there
        else:  # the same would keep a text of the whole stack for each kind of device that is not there
            torch.default_generator.manual_seed(drawn)
        yield


def stream_keys(*parts: int | Sequence[int] | IntArray) -> IntArray:
    """[streams] a 64-bit key for each stream: what it is for.

    Args:
        parts: The integers that tell, a column for each; one integer is the same for all streams.
    """
    # In numpy: of so few numbers torch takes longer to begin than to compute.
    keys = np.zeros(1, dtype=np.int64)
    for column in parts:
        keys = _mixed(keys ^ _last_bits(column))
    return keys


def _last_bits(numbers: int | Sequence[int] | IntArray) -> IntArray:
    try:
        return np.asarray(numbers, dtype=np.int64)
    except OverflowError:  # a seed may be any integer
        several = [numbers] if isinstance(numbers, int) else numbers
        return np.array([_signed(number) for number in several], dtype=np.int64)


def stream_bits(keys: Numbers, places: Numbers, bits: int) -> Numbers:
    """Uniform numbers of so many bits that are a pure function of key and place, on any device."""
    found: Numbers = (_mixed(keys + places * _ODD) >> (64 - bits)) & (2**bits - 1)
    return found


def _mixed(x: Any) -> Any:
    """A bijective 64-bit hash (splitmix64); int64 products wrap, and the masks make the shifts logical."""
    x = x + _ODD
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _FIRST
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _SECOND
    return x ^ ((x >> 31) & (2**33 - 1))


KEY_BITS = 62
"""How many bits of a key `keyed_bits` looks at."""


def keyed_bits(
    key: Tensor, stream: int, shape: tuple[int, ...], device: torch.device, *, spread: bool = False
) -> Tensor:
    """Uniform int32 numbers that are a pure function of (key, stream, position).

    Args:
        key: 0-d int64, the source of the draws; or keys with axes of their own, to which the shape expands.
        stream: A number that tells draws from the same key apart.
        shape: The shape of the result.
        device: Where the result is needed.
        spread: Whether a position is where an entry lies on every axis, whatever the sizes of the axes. By
            default it is a count, in which the size of the first axis alone plays no part.
    """
    positions = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=device).reshape(shape)
    if spread:
        positions = torch.zeros((), dtype=torch.int32, device=device)
        for size, odd in zip(shape, _AXES, strict=False):
            places = _mixed32(odd * torch.arange(size, dtype=torch.int32, device=device))
            positions = positions[..., None] + places
    low = (key & 0x7FFFFFFF).to(torch.int32)
    high = ((key >> 31) & 0x7FFFFFFF).to(torch.int32)
    return _mixed32(_mixed32(positions ^ low) ^ (high + salt(stream)))


_AXES = (-0x61C88647, 0x2C1B3C6D, 1)
"""Odd factors that tell the places on three axes apart."""


def salt(stream: int) -> int:
    """What the number of a stream adds to keys, from 0 to 2^31 - 1."""
    return stream * 0x1E3779B9 % 2**31


def _mixed32(x: Tensor) -> Tensor:
    """A bijective 32-bit hash; int32 products wrap, and the masks make the shifts logical ones."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


def uniforms(key: Tensor, stream: int, like: Tensor) -> Tensor:
    """Numbers from [0, 1) that are a pure function of (key, stream, position), in 24 bits.

    They have the shape, the type and the device of `like`; key and stream are those of `keyed_bits`.
    """
    bits = keyed_bits(key, stream, like.shape, like.device)
    return ((bits >> 8) & (2**24 - 1)).to(like.dtype) / 2**24


def normals(key: Tensor, stream: int, like: Tensor) -> Tensor:
    """Standard normal numbers that are a pure function of (key, stream, position).

    They have the shape, the type and the device of `like`; key and stream are those of `keyed_bits`.
    """
    bits = keyed_bits(key, stream, like.shape, like.device)
    # In float64, where no draw of 32 bits is rounded to the ends, whose normal number is infinite.
    uniform = (bits.double() + 0.5) / 2**31
    return (2**0.5 * torch.erfinv(uniform)).to(like.dtype)
