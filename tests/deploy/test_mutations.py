"""What members read from others or from disk, damaged and forged: it is refused, and nobody falls over."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Callable, Sequence

import pytest
import torch

from consilience import wire
from consilience.algorithms import METHODS
from consilience.deploy import sockets
from consilience.deploy.carrying import InProcess, enrol
from consilience.deploy.journal import AUDIT, STATUS, Journal, read_lines, read_status
from consilience.deploy.resident import Resident
from consilience.deploy.site import Order
from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.keeping import load_said, save_said
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.parcels import Label, cut
from consilience.deploy.zenoh.words import Word, read_word
from consilience.errors import UserError
from consilience.graphs import Ring
from scorecard import mutated_frames
from scorecard.mutated_frames import WAYS, extended, flipped, frames, other_json, shuffled

Way = Callable[[random.Random, bytes], bytes]


def damaged(data: bytes, count: int, ways: Sequence[Way] = WAYS) -> list[bytes]:
    """About so many frames made of one, which are not it."""
    chance = random.Random(0)
    found = [ways[number % len(ways)](chance, data) for number in range(count)]
    return [one for one in found if one != data]


def same(one, other) -> bool:
    return wire.encode(one, wire.Header(0, 0, 0)) == wire.encode(other, wire.Header(0, 0, 0))


@pytest.fixture
def begun(federate):
    place = federate(METHODS["fedavg"]())
    hub, sites = place.hub(), place.sites()
    assert enrol(hub, InProcess(sites)) == {}
    return place, hub, sites


def test_a_hub_goes_on_whatever_sites_answer(begun):
    _, hub, sites = begun
    answers = InProcess(sites).ask(hub.orders()).data
    before, enrolled = hub.state, dict(hub.enrolled)
    for data in [*damaged(answers[1], 60), *(data for _, data in frames(60))]:
        assert hub.enrol(1, data)  # the reason
        _, refused = hub.scores({1: data})
        assert 1 in refused
    report = hub.take(dict(enumerate(damaged(answers[1], 5))))
    assert set(report.refused) == set(range(5))
    assert same(hub.state, before)
    assert dict(hub.enrolled) == enrolled


def test_a_site_refuses_whatever_else_it_is_ordered(begun):
    _, hub, sites = begun
    site = sites[1]
    orders = [hub.orders()[1].data, hub.invitation().data, hub.score_orders()[1].data]
    before = site.memory, site.answered
    for data in [*(one for order in orders for one in damaged(order, 40)), *(data for _, data in frames(60))]:
        with pytest.raises(RefusedError):
            site.answer(Order(data, 5))
    assert (site.memory, site.answered) == before


def test_a_peer_goes_on_whatever_neighbours_say(federate):
    place = federate(METHODS["dechw"](), Ring(), rounds=20)
    peers, silent = place.peers(), place.peers()
    for some in (peers, silent):
        for peer in some.values():
            for node in peer.neighbours:
                peer.meet(node, some[node].own.samples, some[node].degree)
    said = {number: peer.speak() for number, peer in peers.items()}
    silent[0].speak()
    one, other = peers[0].neighbours
    for data in damaged(said[one][0], 24):
        again = place.peer(0)
        for node in again.neighbours:
            again.meet(node, peers[node].own.samples, peers[node].degree)
        again.speak()
        heard = again.hear({one: data, other: data})
        assert set(heard.refused) == {one, other}
        assert heard.heard == (0,)
    # It is as if nothing had come.
    silent[0].hear({})
    assert same(again.hub, silent[0].hub)


def test_a_word_is_refused_or_is_one(federate):
    terms = federate(METHODS["dechw"](), Ring()).terms
    word = Word(1, 0, 7, 60, 2, 5, 0, 2, 100, reason="because")
    data = word.encode(terms)
    assert read_word(data, terms, 1, 0) == word
    for one in [*damaged(data, 60), *(frame for _, frame in frames(60))]:
        with pytest.raises(RefusedError):
            read_word(one, terms, 1, 0)


def test_pieces_are_refused_or_fit():
    data = random.Random(0).randbytes(600_000)
    pieces = cut(data, 3, 7)
    chance = random.Random(0)
    mailbox = Mailbox([1])
    mailbox.turn({3: len(data), 4: len(data)})
    refused = 0
    for number in range(300):
        label, piece = chance.choice(pieces)
        changed = bytearray(label)
        changed[chance.randrange(len(label))] ^= 1 << chance.randrange(8)
        ways = [
            (3, bytes(changed), piece),
            (3, label[: chance.randrange(len(label))], piece),
            (3, label, piece[:-1]),
            (chance.choice([0, 2, 4, 5, 10**10]), label, piece),
            (3, chance.randbytes(len(label)), piece),
            (3, Label(7, 3, 0, 2**32 - 1, 2**63, b"\0" * 32).packed(), piece),
            (3, label, piece + b"\0"),
        ]
        try:
            mailbox.take(1, *ways[number % len(ways)])
        except RefusedError:
            refused += 1
    assert refused > 250
    held = sum(len(piece) for one in mailbox._assemblies.values() for piece in one.pieces.values())
    assert held <= 2 * len(data)  # no more than two messages can be under way
    for label, piece in pieces:
        mailbox.take(1, 3, label, piece)
    assert mailbox.arrived(3) == {1: data}


@pytest.mark.parametrize("member", ["hub", "site", "peer", "said"])
def test_files_that_members_keep_are_refused_by_name(member, federate, tmp_path):
    place = federate(
        METHODS["cfa-ge" if member == "peer" else "scaffold"](), Ring() if member == "peer" else None
    )
    run, path = place.terms.run, tmp_path / "said-0.safetensors"
    read = {
        "hub": lambda: place.hub(file=path),
        "site": lambda: place.site(1, file=path),
        "peer": lambda: place.peer(1, file=path),
        "said": lambda: load_said(tmp_path, run, 2),
    }[member]
    if member == "peer":
        read().hear({})
    elif member == "said":
        save_said(tmp_path, run, 2, {1: b"message", 3: b"another"})
    else:
        hub, site = place.hub(file=path), place.site(1, file=tmp_path / "site")
        hub.enrol(1, site.answer(hub.invitation()))
        if member == "site":
            path.write_bytes((tmp_path / "site").read_bytes())
    whole = path.read_bytes()
    read()
    for data in damaged(whole, 30, (flipped, mutated_frames.cut, extended, shuffled, other_json)):
        path.write_bytes(data)
        with pytest.raises(UserError, match=path.name):
            read()
    reasons = []
    for data in forged(whole):
        path.write_bytes(data)
        try:
            read()  # some of it may be left out or empty
        except UserError as error:
            reasons.append(str(error))
    assert len(reasons) > 5
    assert all(path.name in reason and len(reason) < 400 for reason in reasons)


def forged(whole: bytes) -> list[bytes]:
    """Files with a digest that fits, of content that a member does not write."""
    tensors, fields = wire.decode_tensors(whole)
    without = [{name: value for name, value in fields.items() if name != left_out} for left_out in fields]
    texts = ("", "x", "[" * 100_000, "{}", "[1]", "null", "1:2:3")
    replaced = [{**fields, name: text} for name in fields for text in texts]
    return [
        *(wire.encode_tensors(tensors, one) for one in [*without, *replaced]),
        wire.encode_tensors({**tensors, "other|params/w": torch.ones(1)}, fields),
        wire.encode_tensors({**tensors, "w": torch.ones(1)}, fields),
        wire.encode_tensors({}, fields),
    ]


def test_a_resident_answers_after_any_frame(begun, tmp_path):
    _, hub, sites = begun
    resident = Resident(sites[1], Journal(tmp_path, "run", "1"))
    order = hub.orders()[1]
    head = sockets.HEAD.pack(sockets.ORDER, 0, len(order.data))
    chance = random.Random(0)
    small = [data for data in damaged(order.data, 24) if len(data) < 50_000]  # a socket holds them
    raw = [
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        head[:-1],
        sockets.HEAD.pack(sockets.ORDER, 0, 2**64 - 1),
        sockets.HEAD.pack(sockets.ANSWER, 0, 4) + b"data",
        head + order.data[:-1],
        *(sockets.HEAD.pack(sockets.ORDER, -(2**63), len(data)) + data for data in small),
        *(chance.randbytes(chance.randrange(1, 40)) for _ in range(20)),
    ]
    for data in raw:
        assert spoken_to(resident, data)[:4] in (sockets.REFUSAL, b"")
    assert len(read_lines(tmp_path / AUDIT)) == len(raw)
    answer = spoken_to(resident, head[:4] + (-1).to_bytes(8, "big", signed=True) + head[12:] + order.data)
    assert answer.startswith(sockets.ANSWER)


def spoken_to(resident: Resident, data: bytes) -> bytes:
    """What a resident says to somebody who sends some bytes and then nothing more."""
    ours, its = socket.socketpair()
    with ours, its:
        for end in (ours, its):
            end.settimeout(10)
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            resident._attend_one(its)
        its.shutdown(socket.SHUT_WR)
        found = b""
        while piece := ours.recv(2**16):
            found += piece
        return found


@pytest.mark.parametrize("text", ["", "x", "[]", "[" * 100_000, "null", '{"a"', "\0", '{"round": 1e999}'])
def test_a_damaged_journal_is_no_status_and_is_written_on(text, tmp_path):
    journal = Journal(tmp_path, "run", "1")
    (tmp_path / STATUS).write_text(text)
    found = read_status(tmp_path)
    assert found is None or found == json.loads(text)
    (tmp_path / AUDIT).write_text(text)
    journal.refuse(1, "because")
    journal.stand({"round": 1})
    status = read_status(tmp_path)
    assert status is not None
    assert status["round"] == 1
    assert (tmp_path / AUDIT).read_text().endswith('"because"}\n')
