"""The files of memories of a simulation: those of clients, and of what nodes remember of each other."""

from __future__ import annotations

from pathlib import Path

from consilience.engine.rounds.store import check_snapshot
from consilience.types import State

LINKS = "links."
"""What stands, in a snapshot, before the names of what nodes remember of each other."""


def for_clients(memories: Path) -> Path:
    """Where files of clients' memories lie, but for their endings, where all are `memories` and more."""
    return memories.with_name(f"{memories.name}.clients")


def for_links(memories: Path) -> Path:
    """Where files of what nodes remember of each other lie, in the same way."""
    return memories.with_name(f"{memories.name}.links")


def links_of(snapshot: State) -> State:
    """What a simulation's snapshot holds of what nodes remember of each other."""
    return {g.removeprefix(LINKS): params for g, params in snapshot.items() if g.startswith(LINKS)}


def check_memories(snapshot: State, memories: Path) -> None:
    """Refuse files of memories that do not hold what a simulation's snapshot counts on; nothing is changed.

    Args:
        snapshot: The snapshot; an empty one counts on nothing.
        memories: Where the files lie, but for their endings.
    """
    if snapshot:
        check_snapshot(snapshot, for_clients(memories))
        check_snapshot(links_of(snapshot), for_links(memories))
