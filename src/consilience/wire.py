"""The wire format: a safetensors payload whose header says what it is and proves that it is whole.

The same format carries messages and checkpoints. Header fields have fixed widths, so that the size of a
message depends on its schema alone and can be counted without making it. Content has one form of writing,
and nothing else is read; sizes are checked before memory is taken. Never pickle.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from consilience import heads, tree
from consilience.types import State

SCHEMA = "consilience/1"
METADATA = "consilience"
HEADER = "header"
"""The name by which the bytes of the wire format itself are counted."""


HUB = -1
"""The number of a server, which is no client; as a receiver also: whoever gets it."""

Kind = Literal["work", "score", "enrol", "hello"]
"""What a message is about: an exchange of the method, an evaluation, or who takes part."""

RUN_DIGITS = 16
ABOUT = RUN_DIGITS + 64
"""How many characters the line has that says what a message is about."""
LONGEST_GROUPS = 2**16
"""How many characters the names of all groups take at most."""


class WireError(ValueError):
    """Bytes that are not a whole message of this format."""


@dataclass(frozen=True)
class Header:
    """What a message says about itself."""

    round: int
    sender: int
    samples: int
    """How many training samples the sender has; 0 where it is a hub."""
    exchange: int = 0
    """The number of the exchange within the round; -1, -2, ... for those before the first round."""
    receiver: int = HUB
    run: str = ""
    """Names the run; its members have agreed on it."""
    kind: Kind = "work"


def encode(message: State, header: Header, *, empty: bool = False) -> bytes:
    """A message as bytes; an empty message is no bytes at all, it need not be sent.

    Args:
        message: What is said.
        header: About what, by whom.
        empty: Whether an empty message is bytes all the same, since its header says something.
    """
    if not any(message.values()) and not empty:
        return b""
    return _encoded(tree.flatten(message), _fields(header, tuple(message)), heads.MESSAGE)


def decode(data: bytes) -> tuple[State, Header]:
    """The message and the header in some bytes: inverts `encode`, and raises WireError for anything else.

    Bytes that say the same in another way are something else, too: `encode` of what is found gives `data`.
    """
    tensors, fields = _decoded(data, heads.MESSAGE)
    try:
        about, named = fields["about"], fields["groups"]
        if len(about) != ABOUT or len(named) > LONGEST_GROUPS:
            raise ValueError("its fields have other lengths")
        run, kind, *numbers = about.split(" ")
        found = {name: int(number) for name, number in zip(NUMBERS, numbers, strict=True)}
        header = Header(**found, run=run.rstrip("-"), kind=cast(Kind, kind.rstrip("-")))
        message = tree.unflatten(tensors, json.loads(named))
        if list(tree.flatten(message)) != list(tensors):
            raise ValueError("its groups are not those of its tensors")
        if _fields(header, tuple(message)) != fields:
            raise ValueError("it is not written as this format writes it")
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"the message header is incomplete: {error}") from None
    return message, header


NUMBERS = {
    "round": (0, "010d"),
    "exchange": (-99_999, "+06d"),
    "sender": (HUB, "+011d"),
    "receiver": (HUB, "+011d"),
    "samples": (0, "015d"),
}
"""The least value of the numbers of a header, and how they are written, in this order."""


def _fields(header: Header, groups: tuple[str, ...]) -> dict[str, str]:
    """What a header says, as text; ValueError where it cannot be written so that it is read again."""
    numbers = []
    for name, (least, width) in NUMBERS.items():
        value = getattr(header, name)
        numbers.append(format(value, width))
        if value < least or len(numbers[-1]) != int(width.strip("+d")):
            raise ValueError(f"the {name} {numbers[-1][:40]} is not one that a message can have")
    if not re.fullmatch(f"[0-9a-z]{{0,{RUN_DIGITS}}}", header.run) or header.kind not in get_args(Kind):
        raise ValueError(f"no message is of the run {header.run[:40]!r} or about {header.kind[:40]!r}")
    if any("/" in group for group in groups):
        raise ValueError("a group's name cannot contain a slash")
    names = [header.run.ljust(RUN_DIGITS, "-"), header.kind.ljust(5, "-")]
    fields = {"about": " ".join([*names, *numbers]), "groups": json.dumps(groups)}
    if len(fields["groups"]) > LONGEST_GROUPS:
        raise ValueError(f"the names of groups take more than {LONGEST_GROUPS:,} characters")
    return fields


def encode_tensors(tensors: dict[str, Tensor], fields: dict[str, str]) -> bytes:
    """Named tensors and text fields as bytes, with the order of the names and a digest."""
    return _encoded(tensors, fields, heads.OWN)


def decode_tensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and fields in some bytes, with schema and digest checked: inverts `encode_tensors`."""
    return _decoded(data, heads.OWN)


def _encoded(tensors: dict[str, Tensor], fields: dict[str, str], limits: heads.Limits) -> bytes:
    held = {name: _bytes(value) for name, value in tensors.items()}
    kinds = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    head = heads.head_of(METADATA, _metadata(kinds, fields, _digest(kinds, held, fields)), kinds, limits)
    return b"".join([head.written(), *(held[name] for name in head.kinds)])


def _bytes(value: Tensor) -> memoryview:
    """The bytes of a tensor, in memory of its own only where they do not lie one after the other."""
    plain = value.detach().cpu().contiguous()
    if plain.numel() == 1:  # which may have any strides
        plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().data


def _metadata(names: Iterable[str], fields: dict[str, str], digest: str) -> str:
    """What stands beside the tensors, as one text: of several, safetensors knows no order."""
    return json.dumps({"schema": SCHEMA, "fields": fields, "order": list(names), "sha256": digest})


STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
WRITTEN = re.compile(
    rf'\{{"schema": {STRING}, "fields": \{{(?:{STRING}: {STRING}(?:, {STRING}: {STRING})*+)?+\}}, '
    rf'"order": \[(?:{STRING}(?:, {STRING})*+)?+\], "sha256": "[0-9a-f]{{64}}"\}}'
)
"""How the metadata are written: anything else might become a lot of lists and numbers when it is read."""


def _decoded(data: bytes, limits: heads.Limits) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        head, start = heads.read_head(data, limits)
        # Between two texts there is such a mark, and each text can end in one more.
        crowded = head.text.count('", "') > 2 * (len(head.kinds) + limits.texts)
        if head.key != METADATA or crowded or not WRITTEN.fullmatch(head.text):
            raise ValueError("its metadata are not those of a message")
        metadata = json.loads(head.text)
        if metadata["schema"] != SCHEMA:
            raise ValueError(f"schema {metadata['schema'][:40]!r} is not {SCHEMA!r}")
        fields, digest = metadata["fields"], metadata["sha256"]
        kinds = {name: head.kinds[name] for name in metadata["order"]}
        if len(kinds) != len(head.kinds) or _metadata(kinds, fields, digest) != head.text:
            raise ValueError("it is not written as this format writes it")
    except (KeyError, ValueError) as error:
        raise WireError(f"not a whole consilience message: {str(error)[:200]}") from None
    body = memoryview(data)[start:]
    held = {name: body[begin:end] for name, (begin, end) in zip(head.kinds, head.places, strict=True)}
    if _digest(kinds, held, fields) != digest:
        raise WireError("the digest does not match: the data were damaged")
    return {name: _tensor(held[name], kind) for name, kind in kinds.items()}, fields


def _tensor(data: memoryview, kind: heads.Kind) -> Tensor:
    """A tensor of these bytes, in memory of its own."""
    dtype, shape = kind
    if not data:
        return torch.empty(shape, dtype=dtype)
    if dtype is torch.bool and bytes(data).translate(None, b"\0\1"):
        raise WireError("a truth value is neither 0 nor 1")
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return flat if len(shape) == 1 else flat.reshape(shape)


def _digest(kinds: dict[str, heads.Kind], held: dict[str, memoryview], fields: dict[str, str]) -> str:
    """The digest of everything: fields, names in their order, types, shapes and bytes."""
    whole = hashlib.sha256(json.dumps([sorted(fields.items()), list(kinds)]).encode())
    for name, (dtype, shape) in kinds.items():
        whole.update(f"{name} {dtype} {shape}".encode())
        whole.update(held[name])
    return whole.hexdigest()


def message_bytes(message: State) -> dict[str, int]:
    """The bytes of an encoded message, by group, and of its `header`; they sum to `len(encode(...))`."""
    if not any(message.values()):
        return {}
    if HEADER in message:
        raise ValueError(f"a message cannot have a group called {HEADER!r}: that is the wire format's own")
    groups = {group: tree.nbytes({group: params}) for group, params in message.items() if params}
    return {**groups, HEADER: _header_bytes(tree.Schema.of(message))}


@functools.lru_cache(maxsize=256)
def _header_bytes(schema: tree.Schema) -> int:
    kinds = {path: (dtype, tuple(shape)) for path, (shape, dtype) in schema.kinds().items()}
    fields = _fields(Header(0, 0, 0), schema.groups)
    return len(heads.head_of(METADATA, _metadata(kinds, fields, "0" * 64), kinds, heads.MESSAGE).written())


def size_of(schema: tree.Schema) -> int:
    """The bytes of an encoded message of this schema, also of one without tensors."""
    return _header_bytes(schema) + tree.nbytes(schema.zeros("meta"))
