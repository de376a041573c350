"""Bytes that cross between clients and hubs: counted from the messages' schemas, never estimated."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consilience import tree, wire
from consilience.types import State


@dataclass
class Traffic:
    """The bytes of one replica, by direction and group (`header` is the wire format's own).

    A replica is one of the federations that a simulation computes at once.
    """

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    """How many messages clients sent: to a server, or over an edge of a graph."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Traffic:
        """The count that was `written` as plain values."""
        return cls(Counter(values["up"]), Counter(values["down"]), int(values["messages"]))

    def written(self) -> dict[str, Any]:
        """The count as plain values."""
        return {"up": dict(self.up), "down": dict(self.down), "messages": self.messages}

    def add(self, other: Traffic) -> None:
        """Add the bytes and messages of another count to this one."""
        self.up.update(other.up)
        self.down.update(other.down)
        self.messages += other.messages


def row_bytes(stacked: State) -> dict[str, int]:
    """The bytes on the wire of one row of stacked messages, by group."""
    return _row_bytes(tree.Schema.of(stacked))


@functools.lru_cache(maxsize=256)
def _row_bytes(stacked: tree.Schema) -> dict[str, int]:
    return wire.message_bytes(tree.index(stacked.zeros("meta"), 0))  # where tensors take no memory


def times(count: int, sizes: dict[str, int]) -> Counter[str]:
    """The bytes of `count` equal messages, by group."""
    return Counter({group: count * size for group, size in sizes.items()} if count else {})
