"""The wire format: a safetensors payload whose header says what it is and proves that it is whole.

The same format carries messages and checkpoints. Header fields have fixed widths, so that the size of a
message depends on its schema alone and can be counted without making it. Never pickle.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass

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


class WireError(ValueError):
    """Bytes that are not a whole message of this format."""


@dataclass(frozen=True)
class Header:
    """What a message says about itself."""

    round: int
    sender: int
    samples: int
    """How many training samples the sender has; 0 where it is a hub."""


def encode(message: State, header: Header) -> bytes:
    """A message as bytes; an empty message is no bytes at all, it need not be sent."""
    if not any(message.values()):
        return b""
    if any("/" in group for group in message):
        raise ValueError("a group's name cannot contain a slash")
    return encode_tensors(tree.flatten(message), _fields(header, tuple(message)))


def decode(data: bytes) -> tuple[State, Header]:
    """The message and the header in some bytes: inverts `encode`, and raises WireError for anything else."""
    tensors, fields = decode_tensors(data)
    try:
        header = Header(*(int(fields[name]) for name in ("round", "sender", "samples")))
        groups = json.loads(fields["groups"])
        if not isinstance(groups, list) or not {name.partition("/")[0] for name in tensors} <= set(groups):
            raise ValueError("its groups are not those of its tensors")
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"the message header is incomplete: {error}") from None
    return tree.unflatten(tensors, groups), header


def _fields(header: Header, groups: tuple[str, ...]) -> dict[str, str]:
    return {
        "round": f"{header.round:010d}",
        "sender": f"{header.sender:+011d}",
        "samples": f"{header.samples:015d}",
        "groups": json.dumps(groups),
    }


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
    return len(encode(blank, Header(0, 0, 0))) - tree.nbytes(blank)
