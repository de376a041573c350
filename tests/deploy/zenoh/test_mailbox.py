"""What a node takes from its neighbours' pieces and words, and what it does not."""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.config import load_config
from consilience.deploy.agreeing import agree
from consilience.deploy.terms import RefusedError, Terms
from consilience.deploy.zenoh.locked import PIECE
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.parcels import LABEL, Label, cut, read_label
from consilience.deploy.zenoh.words import Word, read_word, size_of

DATA = bytes(random.Random(0).randbytes(2 * PIECE + 17))
WORD = Word(sender=1, receiver=0, incarnation=5, samples=30, round=2, at=4, first=0, degree=2, ends=9)


@pytest.fixture
def box() -> Mailbox:
    made = Mailbox([1, 3])
    made.turn({4: len(DATA), 5: len(DATA)})
    made.appear(1, 5)
    return made


@pytest.fixture(scope="module")
def terms(tmp_path_factory: pytest.TempPathFactory) -> Terms:
    file = tmp_path_factory.mktemp("terms") / "federation.yaml"
    file.write_text(
        "method: fedavg\nrounds: 9\nmodel: {name: mlp, hidden: [4]}\ntopology: {name: ring, nodes: 4}\n"
    )
    return agree(load_config(file, [])).terms


def test_pieces_in_any_order_and_twice_make_the_message_once(box: Mailbox) -> None:
    pieces = cut(DATA, 4, 5)
    assert len(pieces) == 3
    for place in (2, 0, 0, 1, 1):
        assert place == 1 or not box.arrived(4)
        box.take(1, 4, *pieces[place])
    assert box.arrived(4) == {1: DATA}


def test_what_is_missing_is_named(box: Mailbox) -> None:
    assert box.missing(1, 4) == ()  # nothing has come: everything is
    box.take(1, 4, *cut(DATA, 4, 5)[1])
    assert box.missing(1, 4) == (0, 2)


@pytest.mark.parametrize("away", [-4, -1, 2, 5])
def test_only_this_exchange_and_the_next_are_taken(box: Mailbox, away: int) -> None:
    with pytest.raises(RefusedError, match="over" if away < 0 else "ahead"):
        box.take(1, 4 + away, *cut(DATA, 4 + away, 5)[0])
    box.take(1, 5, *cut(DATA, 5, 5)[0])
    assert box.missing(1, 5) == (1, 2)


def test_a_thousand_replays_change_nothing(box: Mailbox) -> None:
    for piece in cut(DATA, 4, 5):
        box.take(1, 4, *piece)
    other = cut(DATA[::-1], 4, 5)
    for turn in range(1000):
        box.take(1, 4, *other[turn % 3])
    assert box.arrived(4) == {1: DATA}
    box.turn({5: len(DATA), 6: len(DATA)})
    for turn in range(1000):
        box.take(1, 4, *cut(DATA, 4, 5)[turn % 3])  # the same again
        with pytest.raises(RefusedError, match="over"):
            box.take(1, 4, *other[turn % 3])
    assert not box.arrived(4)
    assert not box.arrived(5)


def test_a_size_is_checked_before_anything_is_kept(box: Mailbox) -> None:
    for size in (len(DATA) + 1, 10 * len(DATA), 2**63):
        count = -(-size // PIECE)
        if count < 2**32:
            label = Label(5, 4, 0, count, size, b"0" * 32).packed()
            with pytest.raises(RefusedError, match="bytes instead of"):
                box.take(1, 4, label, b"x" * PIECE)
    assert box.missing(1, 4) == ()


def test_a_message_that_is_not_what_its_pieces_promise_is_refused(box: Mailbox) -> None:
    pieces = cut(DATA, 4, 5)
    box.take(1, 4, *pieces[0])
    box.take(1, 4, *pieces[1])
    label, piece = pieces[2]
    with pytest.raises(RefusedError, match="digest"):
        box.take(1, 4, label, bytes(len(piece)))
    for again in pieces:  # it can still be sent again
        box.take(1, 4, *again)
    assert box.arrived(4) == {1: DATA}


def test_an_incarnation_that_is_over_is_not_heard(box: Mailbox) -> None:
    assert box.tell(WORD)
    assert not box.tell(WORD)
    with pytest.raises(RefusedError, match="over"):
        box.take(1, 4, *cut(DATA, 4, 3)[0])
    with pytest.raises(RefusedError, match="over"):
        box.tell(dataclasses.replace(WORD, incarnation=3))
    box.appear(1, 6)
    assert box.tell(dataclasses.replace(WORD, incarnation=6))
    box.vanish(1, 5)  # the token of the old one goes late
    assert box.neighbours[1].alive


def test_who_is_waited_for(box: Mailbox) -> None:
    def awaited(**changes: bool) -> list[int]:
        return box.awaited(4, [1, 3], **{"silent": True, "all_of_them": False, **changes})

    assert awaited() == []  # nobody has said hello
    assert awaited(all_of_them=True) == [1, 3]
    box.tell(WORD)
    assert awaited() == [1]
    for changes in ({"samples": 0}, {"passed": 4}, {"first": 6, "at": 6}):
        other = Mailbox([1, 3])
        other.appear(1, 5)
        other.tell(dataclasses.replace(WORD, **changes))  # type: ignore[arg-type]
        assert other.awaited(4, [1, 3], silent=True, all_of_them=False) == []
    box.vanish(1, 5)
    assert awaited() == []
    box.appear(1, 5)
    for piece in cut(DATA, 4, 5):
        box.take(1, 4, *piece)
    assert awaited() == []


@pytest.mark.parametrize(
    ("changes", "lead"),
    [
        ({"at": 5}, None),  # one ahead: its message of this exchange can still be had
        ({"at": 6, "round": 3}, 3),  # it has gone on
        ({"at": 6, "first": 6, "round": 4}, None),  # it has come back, and waits there
        ({"at": 12, "first": 12, "round": 6}, 6),  # the same, but too far ahead
    ],
)
def test_who_has_gone_on_without_the_node(box: Mailbox, changes: dict[str, int], lead: int | None) -> None:
    box.tell(dataclasses.replace(WORD, **changes))  # type: ignore[arg-type]
    assert box.lead(4, 2) == lead


def test_words_arrive_as_they_were_said(terms: Terms) -> None:
    word = dataclasses.replace(WORD, wanted=4, missing=(1, 5), refused=3, reason="too large")
    data = word.encode(terms)
    assert len(data) == size_of(terms) == len(WORD.encode(terms))
    assert read_word(data, terms, 1, 0) == word


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sender": 3}, "by 3"),
        ({"receiver": 2}, "for 2"),
        ({"degree": 3}, "neighbours"),
        ({"degree": -2}, "neighbours"),
        ({"round": 10}, "round 10 of 9"),
        ({"first": -1}, "round"),
    ],
)
def test_words_that_cannot_be_are_refused(terms: Terms, changes: dict[str, int], line: str) -> None:
    with pytest.raises(RefusedError, match=line):
        read_word(dataclasses.replace(WORD, **changes).encode(terms), terms, 1, 0)  # type: ignore[arg-type]


def test_words_with_other_terms_are_refused(terms: Terms) -> None:
    other = dataclasses.replace(terms, digest=terms.digest[:-1] + ("0" if terms.digest[-1] != "0" else "1"))
    with pytest.raises(RefusedError, match="other terms"):
        read_word(WORD.encode(other), terms, 1, 0)


def test_what_others_write_into_a_log_is_harmless(terms: Terms) -> None:
    word = dataclasses.replace(WORD, reason='x\n{"from": "2"}\x1b[31m' + "é" * 300)
    found = read_word(word.encode(terms), terms, 1, 0).reason
    assert found.isprintable()
    assert found.isascii()
    assert len(found) <= 160


@given(st.binary(max_size=200))
def test_labels_are_refused_or_fit(data: bytes) -> None:
    try:
        label = read_label(data, 7)
    except RefusedError:
        return
    assert label.length == 7


@given(st.tuples(*[st.integers(0, 2**32 - 1)] * 5), st.integers(0, PIECE))
def test_labels_of_any_numbers_are_refused_or_fit(numbers: tuple[int, ...], length: int) -> None:
    data = LABEL.pack(b"csl1", *numbers, b"0" * 32)
    assert struct.calcsize(">4sQQIIQ32s") == len(data)
    try:
        label = read_label(data, length)
    except RefusedError:
        return
    assert label.index < label.count
    assert label.length == length


def test_flipped_bits_of_words_are_refused(terms: Terms) -> None:
    data = WORD.encode(terms)
    rng: Any = random.Random(1)
    flipped = 0
    for _ in range(200):
        place = rng.randrange(len(data))
        broken = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        try:
            assert read_word(broken, terms, 1, 0) == WORD  # a byte that nobody reads
        except RefusedError:
            flipped += 1
    assert flipped > 190
