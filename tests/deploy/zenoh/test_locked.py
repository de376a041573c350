"""What certificates and access control keep out, with sessions that keep to no rule of ours."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zenoh

from consilience.config import load_config
from consilience.deploy.agreeing import agree
from consilience.deploy.zenoh.certificates import AUTHORITY, Credentials, credentials, make, name_of
from consilience.deploy.zenoh.link import Link
from consilience.deploy.zenoh.locked import FRAME, PIECE, spoken, token
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.words import WORD, Word
from consilience.errors import UserError
from scorecard import sessions
from scorecard.sessions import Listener, say

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def listener(ring: Callable[..., Any], keys: Path) -> Iterator[Listener]:
    federation = ring()
    one = Listener(agree(load_config(federation.file, [])).terms, keys, federation.ports[0])
    with one.link:
        yield one


def lawless(listener: Listener, node: int, keys: Credentials, **options: Any) -> zenoh.Session:
    return sessions.lawless(listener.terms.run, listener.address, node, keys, **options)


def test_a_valid_certificate_speaks_under_its_own_name_alone(
    listener: Listener, keys: Path, wait_until: Until
) -> None:
    run = listener.terms.run
    with lawless(listener, 3, credentials(keys, 3)) as session:
        session.liveliness().declare_token(token(run, 1, 7))
        kept = session.liveliness().declare_token(token(run, 3, 7))
        wait_until(lambda: listener.seen)
        for number in range(50):
            say(session, spoken(run, 1, None, number % 2))
            say(session, spoken(run, 1, 0, number % 2))
            say(session, spoken(run, 3, 1, number % 2))  # to somebody else
        say(session, spoken(run, 3, None, 0))
        say(session, spoken(run, 3, 0, 1), number=1)
        wait_until(lambda: listener.mailbox.arrived(0) and listener.mailbox.arrived(1))
        kept.undeclare()
    assert listener.seen == [3]
    assert listener.mailbox.arrived(0).keys() == listener.mailbox.arrived(1).keys() == {3}
    assert listener.mailbox.neighbours[1].received == 0
    assert listener.mailbox.neighbours[3].received == 20
    assert not listener.refused


def test_who_is_connected_and_not_heard_is_noticed(listener: Listener, keys: Path, wait_until: Until) -> None:
    link, run = listener.link, listener.terms.run
    with lawless(listener, 3, credentials(keys, 3)) as session:
        lying = session.liveliness().declare_token(token(run, 1, 7))
        wait_until(lambda: "another name" in link.silent(0.3).get(3, ""))
        honest = session.liveliness().declare_token(token(run, 3, 7))
        wait_until(lambda: "says nothing" in link.silent(0.3).get(3, ""))
        word = Word(3, 0, 7, samples=1, round=0, at=0, first=0, degree=2, ends=0)
        session.put(spoken(run, 3, 0, WORD), word.encode(listener.terms))
        wait_until(lambda: not link.silent(0.3))
        lying.undeclare()
        honest.undeclare()
    wait_until(lambda: not link.linked)
    assert not link.silent(0.0)
    assert listener.seen == [3]
    assert not listener.refused


def test_a_message_of_many_pieces_arrives_and_can_be_had_again(
    listener: Listener, keys: Path, wait_until: Until
) -> None:
    data, box = random.Random(0).randbytes(9 * PIECE + 1), Mailbox([0])
    listener.mailbox.turn({0: len(data), 1: len(data)})
    link = Link(
        listener.terms,
        1,
        [0],
        credentials(keys, 1),
        box,
        refuse=lambda other, reason: None,
        heard=lambda word, new: None,
        seen=lambda node: None,
        listen=[],
        connect=[listener.address],
        incarnation=1,
    )
    with link:
        wait_until(lambda: listener.seen and box.neighbours[0].tokens)
        link.keep(0, {0: data})
        link.send(0, everybody=True)
        wait_until(lambda: listener.mailbox.arrived(0))
        assert listener.mailbox.arrived(0) == {1: data}
        link.keep(1, {0: data[::-1]})
        assert link.send_again(0, 1, [3, 9])
        wait_until(lambda: len(listener.mailbox.missing(1, 1)) == 8)
        assert listener.mailbox.missing(1, 1) == (0, 1, 2, 4, 5, 6, 7, 8)
        assert link.send_again(0, 1, listener.mailbox.missing(1, 1))
        wait_until(lambda: listener.mailbox.arrived(1))
        assert not link.send_again(0, 2, [])
    assert listener.mailbox.arrived(1) == {1: data[::-1]}
    assert not listener.refused


def test_who_is_no_neighbour_is_not_heard_and_is_written_down(
    listener: Listener, keys: Path, wait_until: Until
) -> None:
    run = listener.terms.run
    with lawless(listener, 4, credentials(keys, 4)) as stranger:
        wait_until(lambda: listener.refused)
        for sender in (1, 3, 4):
            stranger.liveliness().declare_token(token(run, sender, 7))
            say(stranger, spoken(run, sender, None, 0))
            say(stranger, spoken(run, sender, 0, 0))
        with lawless(listener, 1, credentials(keys, 1)) as neighbour:
            kept = neighbour.liveliness().declare_token(token(run, 1, 7))
            wait_until(lambda: listener.seen)
            say(neighbour, spoken(run, 1, 0, 0))
            wait_until(lambda: listener.mailbox.arrived(0))
            kept.undeclare()
    assert listener.mailbox.arrived(0).keys() == {1}
    assert listener.seen == [1]
    assert {other for other, _ in listener.refused} == {name_of(4)}
    assert "no neighbour" in listener.refused[0][1]


def test_pieces_that_are_too_large_are_dropped_before_anybody_sees_them(
    listener: Listener, keys: Path, wait_until: Until
) -> None:
    run = listener.terms.run
    with lawless(listener, 1, credentials(keys, 1)) as session:
        kept = session.liveliness().declare_token(token(run, 1, 7))
        wait_until(lambda: listener.seen)
        say(session, spoken(run, 1, 0, 0), b"x" * (FRAME - 100))  # refused for its size, by us
        wait_until(lambda: listener.refused)
        kept.undeclare()
    assert listener.refused[0][0] == 1
    assert not listener.mailbox.arrived(0)


def test_a_node_in_another_run_is_written_down(listener: Listener, keys: Path, wait_until: Until) -> None:
    with lawless(listener, 1, credentials(keys, 1)) as session:
        kept = session.liveliness().declare_token(token("0123456789abcdef", 1, 7))
        wait_until(lambda: listener.refused)
        kept.undeclare()
    assert listener.refused[0][0] == 1
    assert "another run" in listener.refused[0][1]
    assert not listener.seen


@pytest.mark.parametrize("end", ["pem", "key"])
def test_a_node_does_not_start_without_its_files(keys: Path, tmp_path: Path, end: str) -> None:
    folder = _copied(keys, tmp_path)
    (folder / f"node-1.{end}").unlink()
    _refused(folder, f"node-1.{end} is missing")


def test_a_node_does_not_start_with_files_that_are_wrong(keys: Path, tmp_path: Path) -> None:
    folder = _copied(keys, tmp_path / "1")
    shutil.copy(keys / "node-2.pem", folder / "node-1.pem")
    _refused(folder, "is not the key of")
    shutil.copy(keys / "node-2.key", folder / "node-1.key")
    _refused(folder, "is of node-2, not of node-1")
    (folder / "node-1.pem").write_text("not a certificate")
    _refused(folder, "is not a certificate")

    folder = _copied(keys, tmp_path / "2")
    (folder / "node-1.key").chmod(0o640)
    _refused(folder, "can be read by others")

    folder = _copied(keys, tmp_path / "3")
    make(tmp_path / "rogue", 2)
    shutil.copy(tmp_path / "rogue" / f"{AUTHORITY}.pem", folder)
    _refused(folder, "was not issued by")

    folder = _copied(keys, tmp_path / "4")
    for end in ("pem", "key"):
        (folder / f"node-1.{end}").unlink()
    make(folder, 2, days=-1)
    _refused(folder, "which is not now")


@pytest.mark.parametrize(("days", "warned"), [(6.0, True), (8.0, False)])
def test_a_certificate_that_is_about_to_expire_is_spoken_of(
    tmp_path: Path, days: float, warned: bool
) -> None:
    make(tmp_path, 2, days=days)
    assert (credentials(tmp_path, 1).warning() is not None) == warned


def test_keys_are_their_owner_s_alone_and_are_never_replaced(keys: Path, tmp_path: Path) -> None:
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in keys.glob("*.key"))
    folder = _copied(keys, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    added = make(folder, 10)
    assert [path.name for path in added] == ["node-9.pem"]
    assert all((folder / name).read_bytes() == data for name, data in before.items())
    credentials(folder, 9)


def _copied(keys: Path, parent: Path) -> Path:
    return Path(shutil.copytree(keys, parent / "copied"))


def _refused(folder: Path, line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        credentials(folder, 1)
    assert "\n" not in str(error.value)
