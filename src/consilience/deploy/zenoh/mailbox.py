"""What has come for a node, and what it knows of its neighbours.

Zenoh's threads fill it, the node's own reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.parcels import Assembly, read_label
from consilience.deploy.zenoh.words import NONE, Word

AHEAD = 2
"""How many rounds those who come back may be ahead: they begin after the farthest neighbour's round."""

OVER = "is of an incarnation that is over: a newer node has the same id"
REMEMBERED = 4
"""The number of exchanges for which it is remembered what came."""


@dataclass
class Neighbour:
    """What is known of a neighbour."""

    tokens: set[int] = field(default_factory=set)
    """The incarnations of it that are connected."""
    left: float = 0.0
    """When one of them was last gone."""
    word: Word | None = None
    """The newest that it has said about itself."""
    at: int = NONE
    """The newest exchange in which it is known to be."""
    passed: set[int] = field(default_factory=set)
    """Exchanges in which it has nothing to say."""
    received: int = 0
    """The bytes that have come from it, pieces that came twice included."""
    moved: float = 0.0
    """When a piece of it last came."""
    heard: int = NONE
    """The round of its newest message that was combined."""

    @property
    def alive(self) -> bool:
        """Whether the incarnation that has said hello is still connected."""
        return self.word is not None and self.word.incarnation in self.tokens


class Mailbox:
    """What has come for a node.

    Only messages of the exchange that runs and of the next one are taken, of the size that they must have.
    Where nodes do not wait for each other, those of any exchange are, and a newer one replaces older ones.

    Args:
        neighbours: Who may speak.
        waits: Whether nodes wait for each other.
    """

    def __init__(self, neighbours: Iterable[int], *, waits: bool = True) -> None:
        self.waits = waits
        self.neighbours = {node: Neighbour() for node in neighbours}
        self.changed = threading.Condition(threading.RLock())
        self._sizes: dict[int, int] = {}
        self._assemblies: dict[tuple[int, int], Assembly] = {}
        self._whole: dict[tuple[int, int], bytes] = {}
        self._had: dict[tuple[int, int], bytes] = {}  # digests, by which repetitions are known

    def turn(self, sizes: dict[int, int]) -> None:
        """Take messages of other exchanges than before.

        Args:
            sizes: The bytes of a message, by the number of the exchange.
        """
        with self.changed:
            self._sizes = dict(sizes)
            oldest = min(sizes, default=0)
            if self.waits:
                self._assemblies = {one: v for one, v in self._assemblies.items() if one[1] in sizes}
                self._whole = {one: v for one, v in self._whole.items() if one[1] in sizes}
            self._had = {one: v for one, v in self._had.items() if one[1] >= oldest - REMEMBERED}
            for one in self.neighbours.values():
                one.passed = {number for number in one.passed if number >= oldest}
            self.changed.notify_all()

    # What Zenoh's threads bring.

    def appear(self, node: int, incarnation: int) -> None:
        """A neighbour is connected."""
        with self.changed:
            self.neighbours[node].tokens.add(incarnation)
            self.changed.notify_all()

    def vanish(self, node: int, incarnation: int) -> None:
        """A neighbour is no longer connected, or an old incarnation of it."""
        with self.changed:
            self.neighbours[node].tokens.discard(incarnation)
            self.neighbours[node].left = time.monotonic()
            self.changed.notify_all()

    def alone(self) -> None:
        """Nobody is connected any longer, as far as this node can see."""
        with self.changed:
            for one in self.neighbours.values():
                one.tokens.clear()
            self.changed.notify_all()

    def tell(self, word: Word) -> bool:
        """Take note of how things stand at a neighbour; return whether it is new here."""
        with self.changed:
            known = self.neighbours[word.sender]
            before = known.word
            if before is not None and word.incarnation < before.incarnation:
                raise RefusedError(f"its word {OVER}")
            new = before is None or word.incarnation > before.incarnation
            if new:
                known.at, known.passed = NONE, set()
                self._assemblies = {k: v for k, v in self._assemblies.items() if k[0] != word.sender}
            known.word, known.at = word, max(known.at, word.at)
            known.passed.add(word.passed)
            self.changed.notify_all()
            return new

    def take(self, node: int, number: int, attached: bytes, piece: bytes) -> None:
        """Take a piece of a message; RefusedError says why not."""
        with self.changed:
            known = self.neighbours[node]
            known.received += len(piece)
            label = read_label(attached, len(piece))
            if label.number != number:
                raise RefusedError(f"a piece of exchange {label.number} came as one of {number}")
            if known.word is not None and label.incarnation < known.word.incarnation:
                raise RefusedError(f"its message {OVER}")
            known.at = max(known.at, number)
            if self._had.get((node, number)) == label.digest:
                return  # it was asked for again, and then came twice
            expected = self._expected(node, number)
            if label.size != expected:
                raise RefusedError(f"its message is to have {label.size:,} bytes instead of {expected:,}")
            known.moved = time.monotonic()
            self._add(node, number, label.index, Assembly(label.size, label.digest), piece)

    def _expected(self, node: int, number: int) -> int:
        """The bytes of a message of an exchange; RefusedError where none is taken."""
        oldest = min(self._sizes, default=0)
        if not self.waits and self._sizes:
            newest = max(
                (n for sender, n in (*self._whole, *self._assemblies) if sender == node), default=NONE
            )
            if number < newest:
                raise RefusedError(f"exchange {number} is older than {newest}, which has come")
            return self._sizes[oldest]
        if number in self._sizes:
            return self._sizes[number]
        self.changed.notify_all()  # that somebody is ahead is worth knowing
        raise RefusedError(f"exchange {number} is {'over' if number < oldest else 'ahead'}, {oldest} runs")

    def _add(self, node: int, number: int, index: int, blank: Assembly, piece: bytes) -> None:
        place = (node, number)
        if place in self._whole:
            return  # it came twice
        found = self._assemblies.get(place)
        if not self.waits:
            self._assemblies = {k: v for k, v in self._assemblies.items() if k[0] != node or k == place}
        if found is None or found.digest != blank.digest:
            found = self._assemblies[place] = blank
        found.pieces.setdefault(index, piece)
        if not found.missing():
            del self._assemblies[place]
            data = found.whole()
            if not self.waits:
                self._whole = {k: v for k, v in self._whole.items() if k[0] != node}
            self._whole[place], self._had[place] = data, found.digest
            self.changed.notify_all()

    # What the node asks.

    def arrived(self, number: int) -> dict[int, bytes]:
        """The messages of an exchange that are there, by sender."""
        with self.changed:
            return {node: data for (node, exchange), data in self._whole.items() if exchange == number}

    def newest(self, oldest: int) -> dict[int, tuple[int, bytes]]:
        """The newest message of every neighbour with its exchange, where that is not older than one."""
        with self.changed:
            return {node: (n, data) for (node, n), data in self._whole.items() if n >= oldest}

    def missing(self, node: int, number: int) -> tuple[int, ...]:
        """The pieces of a message that have not come; none are named where none has come."""
        with self.changed:
            found = self._assemblies.get((node, number))
            return () if found is None else tuple(found.missing())

    def awaited(self, number: int, partners: Iterable[int], *, silent: bool, all_of_them: bool) -> list[int]:
        """The neighbours whose messages of an exchange may still come.

        Args:
            number: The exchange.
            partners: Who may speak in it.
            silent: Whether nodes without data have nothing to say in it.
            all_of_them: Whether also those are waited for who are not there.
        """
        with self.changed:
            return [
                node
                for node in partners
                if (node, number) not in self._whole and self._counts(node, number, silent, all_of_them)
            ]

    def _counts(self, node: int, number: int, silent: bool, all_of_them: bool) -> bool:
        known = self.neighbours[node]
        if known.word is None:
            return all_of_them
        if (silent and not known.word.samples) or number in known.passed:
            return False
        if all_of_them:
            return True
        # Who is two exchanges ahead has gone on alone, and has forgotten what it said in this one.
        return known.alive and known.word.first <= number and known.at <= number + 1

    def lead(self, number: int, round_number: int) -> int | None:
        """The round of the neighbour that has gone on farthest without this node; None where nobody has.

        A neighbour that has come back begins a round ahead, where it is waited for: that alone is no lead.

        Args:
            number: The exchange in which this node is.
            round_number: Its round.
        """
        with self.changed:
            words = [one.word for one in self.neighbours.values() if one.alive and one.word is not None]
            ahead = [
                word.round
                for word in words
                if word.at > max(number + 1, word.first) or word.round > round_number + AHEAD
            ]
            return max(ahead, default=None)
