"""Honest frames, and how one is taken apart, changed, and put together with a digest that fits."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from consilience import heads, wire


@functools.cache
def honest(seed: int = 0) -> list[bytes]:
    """Messages of several forms, as members send them."""
    source = torch.Generator().manual_seed(seed)
    weights = {"fc.weight": torch.randn(3, 4, generator=source), "fc.bias": torch.randn(3, generator=source)}
    states = [
        {"params": weights},
        {"params": weights, "buffers": {"steps": torch.tensor(3), "on": torch.tensor([True, False])}},
        {"params": {"größe": torch.zeros(0, 3)}, "none": {}, "half": {"h": torch.ones(2).bfloat16()}},
        {},
    ]
    headers = [
        wire.Header(7, 2, 60, run="0123456789abcdef"),
        wire.Header(0, wire.HUB, 0, exchange=-1, kind="enrol"),
        wire.Header(12, 3, 5, exchange=1, receiver=4, run="0123456789abcdef", kind="score"),
    ]
    return [wire.encode(state, header, empty=True) for state in states for header in headers]


@dataclass
class Parts:
    """A frame in parts, each of which may be made wrong."""

    metadata: dict[str, Any]
    entries: list[tuple[str, dict[str, Any]]]
    body: bytes

    @classmethod
    def of(cls, data: bytes) -> Parts:
        end = 8 + int.from_bytes(data[:8], "little")
        head = json.loads(data[8:end])
        metadata = json.loads(head.pop("__metadata__")["consilience"])
        return cls(metadata, list(head.items()), data[end:])

    def sign(self) -> None:
        """Compute the digest of what is there now, as far as it can be computed."""
        fields, entries = self.metadata["fields"], dict(self.entries)
        whole = hashlib.sha256(json.dumps([sorted(fields.items()), list(self.metadata["order"])]).encode())
        for name in self.metadata["order"]:
            entry = entries[name]
            start, end = entry["data_offsets"]
            kind = f"{name} {heads.TYPES[entry['dtype']]} {tuple(entry['shape'])}"
            whole.update(kind.encode() + self.body[start:end])
        self.metadata["sha256"] = whole.hexdigest()

    def joined(self, *, signed: bool = True, pad: int = 8, **style: Any) -> bytes:
        """The frame; `style` goes to the writer of the outer JSON."""
        if signed:
            self.sign()
        text = {"__metadata__": {"consilience": json.dumps(self.metadata)}, **dict(self.entries)}
        return framed(
            json.dumps(text, **{"separators": (",", ":"), "ensure_ascii": False, **style}), self.body, pad
        )


def framed(text: str | bytes, body: bytes = b"", pad: int = 8) -> bytes:
    """A frame of a head's text and of tensors."""
    head = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    head = head.ljust(-(-len(head) // pad) * pad)
    return len(head).to_bytes(8, "little") + head + body


def written(name: str, entry: object) -> str:
    """An entry of a head, in JSON."""
    return f"{json.dumps(name, ensure_ascii=False)}:{json.dumps(entry, separators=(',', ':'))}"


def with_head(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A frame whose head's text is another one."""
    end = 8 + int.from_bytes(data[:8], "little")
    return framed(change(data[8:end]), data[end:], pad=1)
