"""Bytes that cross between clients and hubs: counted from the messages' schemas, never estimated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from consilience import tree, wire
from consilience.types import State


@dataclass
class Traffic:
    """Bytes of one replica in one round, by direction and group (`header` is the wire format's own)."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    """That clients sent: to a server, or over an edge of a graph."""

    def add(self, other: Traffic) -> None:
        """Add another count."""
        self.up.update(other.up)
        self.down.update(other.down)
        self.messages += other.messages


def row_bytes(stacked: State) -> dict[str, int]:
    """Bytes on the wire of one row of stacked messages, by group."""
    return wire.message_bytes(tree.map_leaves(lambda value: value[0], stacked))


def times(count: int, sizes: dict[str, int]) -> Counter[str]:
    """Bytes of `count` equal messages."""
    return Counter({group: count * size for group, size in sizes.items()} if count else {})
