"""The wire format: a safetensors payload whose header says what it is and proves that it is whole.

The same format carries messages and checkpoints. Header fields have fixed widths, so that the size of a
message depends on its schema alone and can be counted without making it. Never pickle.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Literal, cast, get_args

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from consilience import tree
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
    if any("/" in group for group in message):
        raise ValueError("a group's name cannot contain a slash")
    return encode_tensors(tree.flatten(message), _fields(header, tuple(message)))


def decode(data: bytes) -> tuple[State, Header]:
    """The message and the header in some bytes: inverts `encode`, and raises WireError for anything else."""
    tensors, fields = decode_tensors(data)
    try:
        run, kind, *numbers = fields["about"].split(" ")
        found = {name: int(number) for name, number in zip(WIDTHS, numbers, strict=True)}
        header = Header(**found, run=run.rstrip("-"), kind=cast(Kind, kind.rstrip("-")))
        if header.kind not in get_args(Kind):
            raise ValueError(f"it is about {header.kind!r}")
        groups = json.loads(fields["groups"])
        if not isinstance(groups, list) or not {name.partition("/")[0] for name in tensors} <= set(groups):
            raise ValueError("its groups are not those of its tensors")
        if _fields(header, tuple(groups)) != fields:
            raise ValueError("it is not written as this format writes it")
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"the message header is incomplete: {error}") from None
    return tree.unflatten(tensors, groups), header


WIDTHS = {"round": "010d", "exchange": "+06d", "sender": "+011d", "receiver": "+011d", "samples": "015d"}
"""How the numbers of a header are written, in this order."""


def _fields(header: Header, groups: tuple[str, ...]) -> dict[str, str]:
    numbers = [format(getattr(header, name), width) for name, width in WIDTHS.items()]
    names = [header.run[:RUN_DIGITS].ljust(RUN_DIGITS, "-"), header.kind.ljust(5, "-")]
    return {"about": " ".join([*names, *numbers]), "groups": json.dumps(groups)}


def encode_tensors(tensors: dict[str, Tensor], fields: dict[str, str]) -> bytes:
    """Named tensors and text fields as bytes, with the order of the names and a digest."""
    held = _separate({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    metadata = {"schema": SCHEMA, "fields": fields, "order": list(held), "sha256": _digest(held, fields)}
    # One entry: safetensors writes several in random order, and equal messages must be equal bytes.
    return safetensors.torch.save(held, {METADATA: json.dumps(metadata)})


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each in memory of its own and with plain strides (a single element may have any)."""
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, value in tensors.items():
        start = value.untyped_storage().data_ptr()
        copy = start in seen or value.numel() == 1
        separate[name] = value.clone(memory_format=torch.contiguous_format) if copy else value
        seen.add(start)
    return separate


def decode_tensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and fields in some bytes, with schema and digest checked: inverts `encode_tensors`."""
    try:
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][METADATA])
        fields = {str(name): str(value) for name, value in dict(metadata["fields"]).items()}
        held = {name: tensors[name] for name in metadata["order"]}
        schema, digest = metadata["schema"], metadata["sha256"]
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"not a whole consilience message: {error}") from None
    if schema != SCHEMA:
        raise WireError(f"schema {schema!r} is not {SCHEMA!r}")
    if len(held) != len(tensors) or _digest(held, fields) != digest:
        raise WireError("the digest does not match: the data were damaged")
    return held, fields


def _digest(tensors: dict[str, Tensor], fields: dict[str, str]) -> str:
    """The digest of everything: fields, names in their order, types, shapes and bytes."""
    whole = hashlib.sha256(json.dumps([sorted(fields.items()), list(tensors)]).encode())
    for name, value in tensors.items():
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy().data)
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
    blank = schema.zeros()
    return len(encode(blank, Header(0, 0, 0), empty=True)) - tree.nbytes(blank)


def size_of(schema: tree.Schema) -> int:
    """The bytes of an encoded message of this schema, also of one without tensors."""
    return _header_bytes(schema) + tree.nbytes(schema.zeros("meta"))
