"""The head of a safetensors file: one way to write it, and limits that hold before anything is made of it.

A head says the names, types, shapes and places of tensors, in JSON. The same content can be written in many
ways, and a small head can ask for a lot of memory. What this project writes itself it therefore reads only as
it would write it, entry by entry; files of others are looked at before safetensors opens them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import torch

TYPES = {
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What types are called, in the order in which safetensors puts tensors: the widest first, then by name."""
CODES = {dtype: (place, code) for place, (code, dtype) in enumerate(TYPES.items())}

Kind = tuple[torch.dtype, tuple[int, ...]]
"""The type and the shape of a tensor."""


class LimitError(ValueError):
    """A head that asks for more than it may."""


@dataclass(frozen=True)
class Limits:
    """What a head may ask for."""

    length: int
    """Its bytes."""
    tensors: int
    texts: int
    """How many names and values stand beside the names of tensors."""


MESSAGE = Limits(2**24, 2**15, 2**4)
"""The limits of messages."""
OWN = Limits(100_000_000, 2**20, 2**20)
"""The limits of files that this project wrote, with states of clients; safetensors reads no longer ones."""
OTHERS = Limits(2**24, 2**16, 2**16)
"""The limits of files of weights, by whomever."""
LONGEST_NAME = 2**10
DIMENSIONS = 64
LARGEST = 2**62
"""How many numbers a tensor would have if no dimension of its shape were 0."""

LENGTH = 8  # the bytes that say how long a head is
METADATA = "__metadata__"
STRING = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
FIRST = re.compile(rb'\{"__metadata__":\{' + STRING + rb":" + STRING + rb"\}")
ENTRY = re.compile(
    rb"," + STRING + rb':\{"dtype":"([A-Z0-9_]{1,16})","shape":\[([0-9,]{0,1280})\],'
    rb'"data_offsets":\[([0-9]{1,19}),([0-9]{1,19})\]\}'
)
LAST = re.compile(rb"\} *")


@dataclass(frozen=True)
class Head:
    """What a head says."""

    key: str
    """What its one text is called."""
    text: str
    kinds: dict[str, Kind]
    """The types and shapes of the tensors, in the order in which these lie in the file."""

    def written(self) -> bytes:
        """The bytes before the tensors, as safetensors writes them."""
        entries: dict[str, object] = {METADATA: {self.key: self.text}}
        for (name, (dtype, shape)), place in zip(self.kinds.items(), self.places, strict=True):
            entries[name] = {"dtype": CODES[dtype][1], "shape": shape, "data_offsets": place}
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        padded = text.ljust(-(-len(text) // 8) * 8)  # tensors begin where a number of eight bytes could
        return len(padded).to_bytes(LENGTH, "little") + padded

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Where the bytes of every tensor begin and end, counted from those of the first."""
        sizes = (math.prod(shape) * dtype.itemsize for dtype, shape in self.kinds.values())
        return list(pairwise(accumulate(sizes, initial=0)))


def head_of(key: str, text: str, kinds: Mapping[str, Kind], limits: Limits) -> Head:
    """The head of a file with these tensors; ValueError says which limit they exceed.

    Args:
        key: What the text is called.
        text: What stands beside the tensors.
        kinds: The types and shapes of the tensors, in any order.
        limits: What the head may ask for.
    """
    if len(kinds) > limits.tensors:
        raise ValueError(f"{len(kinds):,} tensors are more than the {limits.tensors:,} there may be")
    for name, kind in kinds.items():
        check(name, kind)
    return Head(key, text, dict(sorted(kinds.items(), key=_order)))


def _order(named: tuple[str, Kind]) -> tuple[int, str]:
    name, (dtype, _) = named
    return CODES[dtype][0], name


def check(name: str, kind: Kind) -> None:
    """Refuse a tensor that no head may name; LimitError says why."""
    dtype, shape = kind
    if len(name) > LONGEST_NAME or name == METADATA:
        raise LimitError(f"{name[:40]!r} is no name of a tensor")
    if dtype not in CODES:
        raise LimitError(f"{name[:80]!r} has the type {dtype}, which the format does not know")
    if len(shape) > DIMENSIONS or math.prod(filter(None, shape)) > LARGEST:
        raise LimitError(f"{name[:80]!r} has a shape that no tensor has")


def read_head(data: bytes, limits: Limits) -> tuple[Head, int]:
    """The head of some bytes and where their tensors begin; ValueError says why they have none.

    Nothing but the one way of writing is read, and no tensor is made.
    """
    start = LENGTH + int.from_bytes(data[:LENGTH], "little")
    if start > min(len(data), LENGTH + limits.length):
        raise ValueError(f"a head of {start - LENGTH:,} bytes is longer than the data or the limit")
    found = FIRST.match(data, LENGTH, start)
    if found is None:
        raise ValueError("it does not begin as it should")
    key, text = (_string(found[group]) for group in (1, 2))
    kinds: dict[str, Kind] = {}
    place = found.end()
    while (found := ENTRY.match(data, place, start)) is not None:
        name, code, shape = _string(found[1]), found[2].decode(), found[3]
        if name in kinds or code not in TYPES or len(kinds) == limits.tensors:
            raise ValueError(f"{name[:80]!r} is there twice, is one too many or of an unknown type")
        kinds[name] = (TYPES[code], tuple(int(size) for size in shape.split(b",")) if shape else ())
        place = found.end()
    if LAST.fullmatch(data, place, start) is None:
        raise ValueError("it is not written as this format writes it")
    head = head_of(key, text, kinds, limits)
    if list(head.kinds) != list(kinds) or head.written() != data[:start]:
        raise ValueError("it is not written as this format writes it")
    if start + (head.places[-1][1] if kinds else 0) != len(data):
        raise ValueError("the tensors take more or fewer bytes than there are")
    return head, start


def _string(escaped: bytes) -> str:
    return str(json.loads(b'"%b"' % escaped)) if b"\\" in escaped else escaped.decode()


def check_file(path: Path) -> None:
    """Refuse a safetensors file of somebody else that asks for more than a file of weights needs.

    What is wrong beyond that, safetensors says when it opens the file. LimitError says what is too much.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH), "little")
        if length > OTHERS.length:
            raise LimitError(f"its head is to have {length:,} bytes, and {OTHERS.length:,} are allowed")
        head = file.read(length)
    if head.count(b"{") > OTHERS.tensors or sum(head.count(mark) for mark in b",[") > 16 * OTHERS.tensors:
        raise LimitError(f"its head lists more than the {OTHERS.tensors:,} tensors that are allowed")
