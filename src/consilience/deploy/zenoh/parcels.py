"""A message in pieces: cut by its sender, put together where size and digest are as they should be."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.locked import PIECE

LABEL = struct.Struct(">4sQQIIQ32s")
VERSION = b"csl1"


@dataclass(frozen=True)
class Label:
    """What a piece says about itself and about the whole."""

    incarnation: int
    number: int
    """The exchange."""
    index: int
    count: int
    size: int
    """The bytes of the whole."""
    digest: bytes

    def packed(self) -> bytes:
        """The label as bytes, which travel beside the piece."""
        numbers = (self.incarnation, self.number, self.index, self.count, self.size)
        return LABEL.pack(VERSION, *numbers, self.digest)

    @property
    def length(self) -> int:
        """The bytes of the piece."""
        return min(PIECE, self.size - PIECE * self.index)


def read_label(data: bytes, length: int) -> Label:
    """The label of a piece with so many bytes; RefusedError where it cannot be one."""
    if len(data) != LABEL.size:
        raise RefusedError("a piece has no label")
    version, incarnation, number, index, count, size, digest = LABEL.unpack(data)
    label = Label(incarnation, number, index, count, size, digest)
    if version != VERSION or label.count != count_of(label.size) or label.index >= label.count:
        raise RefusedError("a piece has a label that cannot be")
    if length != label.length:
        raise RefusedError(f"a piece has {length:,} bytes instead of {label.length:,}")
    return label


def count_of(size: int) -> int:
    """How many pieces a message has."""
    return max(1, -(-size // PIECE))


def cut(data: bytes, number: int, incarnation: int) -> list[tuple[bytes, bytes]]:
    """The pieces of a message, each after its label."""
    digest, count = hashlib.sha256(data).digest(), count_of(len(data))
    return [
        (
            Label(incarnation, number, index, count, len(data), digest).packed(),
            data[PIECE * index : PIECE * (index + 1)],
        )
        for index in range(count)
    ]


@dataclass
class Assembly:
    """The pieces of one message that have come so far."""

    size: int
    digest: bytes
    pieces: dict[int, bytes] = field(default_factory=dict)

    def missing(self) -> list[int]:
        """The pieces that have not come."""
        return [index for index in range(count_of(self.size)) if index not in self.pieces]

    def whole(self) -> bytes:
        """The message; RefusedError where it is not what its pieces have promised."""
        data = b"".join(self.pieces[index] for index in range(count_of(self.size)))
        if hashlib.sha256(data).digest() != self.digest:
            raise RefusedError("the digest of its pieces does not match")
        return data
