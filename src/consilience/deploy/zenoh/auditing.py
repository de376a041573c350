"""What a node writes down of what it has refused, and tells those whom it concerns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from consilience.deploy.journal import Journal
from consilience.deploy.zenoh.words import NONE, Word

LOG = logging.getLogger("consilience")
REPEATED = 20
"""How often the same refusal is written down; after that it is counted."""


@dataclass
class _Told:
    """What a neighbour is told of refusals in the next word, and has told."""

    refused: int = NONE
    reason: str = ""
    heard: dict[str, int] = field(default_factory=dict)
    """The exchange in which it has last refused something, by reason."""


class Audit:
    """A node's log of refusals, at both ends: its own, and those of which neighbours tell it.

    Args:
        journal: Where they are written down.
        number: Which node it is.
        neighbours: Whom it tells.
    """

    def __init__(self, journal: Journal, number: int, neighbours: Iterable[int]) -> None:
        self._journal, self._number = journal, number
        self._told = {node: _Told() for node in neighbours}
        self._lines: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self.count = 0
        """How often something was refused."""
        self.round = 0
        self.exchange = 0
        """Where the node is, which lines name."""

    def refuse(self, other: int | str, reason: str) -> None:
        """Write down that something was refused, and have it told to whom it concerns."""
        with self._lock:
            self.count += 1
            count = self._lines[str(other), reason] = self._lines.get((str(other), reason), 0) + 1
            if count <= REPEATED:
                more = "; more of this is counted, not written down" if count == REPEATED else ""
                self._journal.refuse(other, reason + more, self.round)
                LOG.warning("node %d: %s is refused: %s", self._number, other, reason)
            told = self._told.get(other) if isinstance(other, int) else None
            if told is not None:
                told.refused, told.reason = self.exchange, reason

    def note(self, other: int, line: str) -> None:
        """Write down what concerns a node (or this one itself), and is no refusal of a message."""
        with self._lock:
            self._journal.refuse(other, line, self.round)
            LOG.warning("node %d: %s%s", self._number, "" if other == self._number else f"{other}: ", line)

    def forget(self, node: int) -> None:
        """A neighbour was started anew: what was refused before does not concern it any longer."""
        with self._lock:
            self._told[node] = _Told()

    def about(self, node: int) -> tuple[int, str]:
        """What a neighbour is told: the newest exchange of which something was refused, and why."""
        told = self._told[node]
        return told.refused, told.reason

    def hear(self, word: Word) -> None:
        """Write down what a neighbour says that it has refused."""
        heard = self._told[word.sender].heard
        if word.refused == NONE or not word.reason or heard.get(word.reason) == word.refused:
            return
        new = word.reason not in heard
        heard[word.reason] = word.refused
        line = f"it has refused what this node said: {word.reason}"
        with self._lock:
            self._journal.refuse(word.sender, line, self.round)
            if new:
                LOG.warning("node %d: %d: %s", self._number, word.sender, line)
