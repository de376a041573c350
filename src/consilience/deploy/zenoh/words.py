"""What nodes tell each other beside the method's messages: who they are, where they stand, what they miss.

There is one kind of word. It says how things stand rather than what has happened, so that it may get lost,
come twice or come late, and the next one mends it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from consilience import tree, wire
from consilience.deploy.terms import RefusedError, Terms, read
from consilience.exchange import screen
from consilience.types import State

WORD = "word"
"""What stands in a key in the place of an exchange."""
NONE = -1
ASKED = 64
"""How many missing pieces a word names at most; the next word names others."""
LATEST = 253_402_300_799
"""The last second of the year 9999, beyond which no date is written."""
TEXT = 160
"""How many characters a reason has at most."""


@dataclass(frozen=True)
class Word:
    """How things stand at a node, for one of its neighbours."""

    sender: int
    receiver: int
    incarnation: int
    """When the sender was started, in seconds."""
    samples: int
    round: int
    at: int
    """The exchange in which the sender is, counted since the run began."""
    first: int
    """The first exchange in which it speaks: it is not waited for in any before."""
    degree: int
    """How many of its neighbours have data; NONE until it has met them."""
    ends: int
    """When its certificate expires, in seconds."""
    passed: int = NONE
    """The newest exchange in which it has nothing to say to the receiver."""
    wanted: int = NONE
    """An exchange of which the receiver's message has not come."""
    missing: tuple[int, ...] = ()
    """The pieces of it that have not come; none named: all."""
    refused: int = NONE
    """The newest exchange of which the receiver's message was refused."""
    reason: str = ""

    def encode(self, terms: Terms) -> bytes:
        """The word as bytes, which always have the same length."""
        header = wire.Header(
            round=self.round,
            sender=self.sender,
            samples=self.samples,
            receiver=self.receiver,
            run=terms.run,
            kind="hello",
        )
        numbers = (
            self.incarnation,
            self.at,
            self.first,
            self.degree,
            self.ends,
            self.passed,
            self.wanted,
            self.refused,
        )
        missing = (*self.missing[:ASKED], *[NONE] * (ASKED - len(self.missing)))
        text = self.reason.encode("ascii", "replace")[:TEXT].ljust(TEXT)
        state = {
            "word": {
                "terms": _bytes(bytes.fromhex(terms.digest)),
                "numbers": torch.tensor(numbers),
                "missing": torch.tensor(missing),
                "reason": _bytes(text),
            }
        }
        return wire.encode(state, header)


def _bytes(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def _form(terms: Terms) -> tree.Schema:
    return tree.Schema.of(read(Word(0, 0, 0, 0, 0, 0, 0, 0, 0).encode(terms))[0])


def size_of(terms: Terms) -> int:
    """The bytes of every word of a run."""
    return wire.size_of(_form(terms))


def read_word(data: bytes, terms: Terms, sender: int, receiver: int) -> Word:
    """A neighbour's word; RefusedError says why it cannot be one."""
    form = _form(terms)
    state, header = read(data, wire.size_of(form))
    reason = screen.fault(state, form)
    if reason:
        raise RefusedError(f"its word does not fit: {reason}")
    if (header.kind, header.sender, header.receiver) != ("hello", sender, receiver):
        raise RefusedError(f"its word is by {header.sender} for {header.receiver}")
    if header.run != terms.run or _text(state, "terms") != bytes.fromhex(terms.digest):
        raise RefusedError("it has other terms")
    incarnation, at, first, degree, ends, passed, wanted, refused = state["word"]["numbers"].tolist()
    word = Word(
        sender,
        receiver,
        incarnation,
        header.samples,
        header.round,
        at,
        first,
        degree,
        ends,
        passed,
        wanted,
        tuple(int(one) for one in state["word"]["missing"] if one >= 0),
        refused,
        # Another's text goes into a log: nothing but what can be seen.
        "".join(
            one for one in _text(state, "reason").decode("ascii", "replace") if one.isprintable()
        ).strip(),
    )
    assert terms.adjacency is not None
    if not NONE <= degree <= int(terms.adjacency[sender].sum()):
        raise RefusedError(f"it has {degree} neighbours with data, more than it has neighbours at all")
    if not 0 <= ends <= LATEST:
        raise RefusedError("its certificate ends at a time that cannot be")
    if word.round > terms.rounds or not first >= 0:
        raise RefusedError(f"its word is of round {word.round} of {terms.rounds}")
    return word


def _text(state: State, name: str) -> bytes:
    return bytes(state["word"][name].tolist())
