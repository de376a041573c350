"""Certificates in the course of a run: they expire, are replaced, and others do not accept them."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.certificates import AUTHORITY, Credentials, credentials, make, now
from consilience.deploy.zenoh.locked import session_config
from consilience.deploy.zenoh.reaching import Scout, trouble
from consilience.deploy.zenoh.renewing import Renewal
from consilience.deploy.zenoh.words import Word
from consilience.errors import UserError

zenoh = pytest.importorskip("zenoh")

Until = Callable[[Callable[[], object]], None]
LONG = pytest.mark.skipif("CONSILIENCE_LONG" not in os.environ, reason="set CONSILIENCE_LONG=1")
NODE = "node-2.pem"


@pytest.fixture
def own(keys: Path, tmp_path: Path) -> Path:
    """Keys that a test may change."""
    return Path(shutil.copytree(keys, tmp_path / "own"))


def _again(folder: Path, days: float = 365.0) -> None:
    """Replace the certificate of node 2, for the same key."""
    (folder / NODE).unlink()
    make(folder, 5, days=days)


class Watched:
    """A renewal, and what it has said and done."""

    def __init__(self, keys: Credentials) -> None:
        self.lines, self.renewed = list[tuple[int, str]](), list[Credentials]()
        self.renewal = Renewal(
            keys, 2, note=lambda node, line: self.lines.append((node, line)), renew=self.renewed.append
        )

    def look(self, *words: Word, linked: tuple[int, ...] = ()) -> list[tuple[int, str]]:
        """What is said in three looks, of which the second sees that files no longer change."""
        before = len(self.lines)
        for _ in range(3):
            self.renewal.look(list(words), linked)
        return self.lines[before:]


def test_a_certificate_that_has_expired_is_spoken_of_once_at_both_ends(own: Path) -> None:
    good = credentials(own, 2)
    watched = Watched(replace(good, ends=now() - datetime.timedelta(seconds=1)))
    ((node, line),) = watched.look()
    assert node == 2
    assert f"{NODE} has expired" in line
    ends = int(now().timestamp())
    words = [Word(node, 2, 0, 1, 0, 0, 0, 2, ends=end) for node, end in ((1, ends - 5), (3, ends + 500))]
    ((node, line),) = watched.look(*words)
    assert node == 1
    assert "its certificate has expired" in line
    assert watched.look(*words) == []
    ((node, _),) = watched.look(replace(words[0], ends=ends - 4))  # a new one, which has expired again
    assert node == 1


def test_connections_that_outlive_a_certificate_are_closed_once(own: Path) -> None:
    good, ends = credentials(own, 2), int(now().timestamp())
    watched = Watched(good)
    words = [Word(node, 2, 0, 1, 0, 0, 0, 2, ends=end) for node, end in ((1, ends - 5), (3, ends + 500))]
    watched.look(*words, linked=(3,))
    assert not watched.renewed  # Zenoh has closed it
    watched.look(*words, linked=(1, 3))
    assert watched.renewed == [good]
    watched = Watched(replace(good, ends=now() - datetime.timedelta(seconds=5)))
    watched.look()
    assert watched.renewed == [watched.renewal.keys]


def test_other_files_are_taken_once_they_are_good_and_no_longer_change(own: Path) -> None:
    watched = Watched(credentials(own, 2))
    assert watched.look() == []
    (own / NODE).write_text("half a certif")
    ((_, line),) = watched.look()
    assert "is not a certificate; the node goes on with what it had" in line
    assert not watched.renewed
    _again(own, days=8)
    watched.renewal.look([], ())
    assert not watched.renewed  # they may still change
    ((_, line),) = watched.look()
    assert f"{NODE} was replaced" in line
    assert watched.renewed == [watched.renewal.keys] == [credentials(own, 2)]
    assert watched.look() == []


def test_an_authority_is_replaced_by_way_of_a_file_with_both(own: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    make(new, 5, days=30)
    both = (own / f"{AUTHORITY}.pem").read_bytes() + (new / f"{AUTHORITY}.pem").read_bytes()
    (own / f"{AUTHORITY}.pem").write_bytes(both)
    assert credentials(own, 2).ends > now() + datetime.timedelta(days=300)
    for end in ("pem", "key"):
        shutil.copy(new / f"node-2.{end}", own)
    assert credentials(own, 2).ends < now() + datetime.timedelta(days=31)
    shutil.copy(new / f"{AUTHORITY}.pem", own)
    credentials(own, 2)
    with pytest.raises(UserError, match="was not issued by"):
        credentials(own, 1)


def test_it_is_said_why_a_neighbour_is_not_reached(own: Path, tmp_path: Path, wait_until: Until) -> None:
    mine, rogue = credentials(own, 0), tmp_path / "rogue"
    make(rogue, 2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    there = f"tls/127.0.0.1:{port}"
    assert trouble(there, mine, ["node-1"]) == "nobody listens there"
    assert trouble("tls/nowhere.invalid:7447", mine, ["node-1"]) == "the name 'nowhere.invalid' is not known"
    assert "no address" in str(trouble("tls/7447", mine, ["node-1"]))
    config = session_config("ab", 1, [0], credentials(own, 1), listen=[there], connect=[])
    with zenoh.open(zenoh.Config.from_json5(config)):
        assert trouble(there, mine, ["node-1", "node-3"]) is None
        with pytest.raises(RefusedError, match="node-1 is there, which is no neighbour"):
            trouble(there, mine, ["node-3"])
        strange = credentials(rogue, 0)
        with pytest.raises(RefusedError, match="its certificate is not accepted"):
            trouble(there, strange, ["node-1"])
        with pytest.raises(RefusedError, match="does not accept this node's certificate"):
            trouble(there, replace(strange, authority=mine.authority), ["node-1"])
        said = list[tuple[str, bool]]()
        scout = Scout([there, "tls/7447"], lambda line, refused: said.append((line, refused)))
        for _ in range(2):
            scout.look(strange, ["node-1"], ["node-1"])
            wait_until(lambda: scout.idle)
    first, second, third = said  # once each
    assert first == ("not connected: node-1", False)
    assert second[1]
    assert third == ("tls/7447: it is no address like tls/10.0.0.7:7447", False)
    assert scout.lines == (first[0], second[0], third[0])
    scout.rest()
    assert scout.lines == ()


def _said(one: Any, node: int, line: str) -> bool:
    """Whether a node has written something down, and shown it."""
    written = any(line in entry["reason"] for entry in one.refusals(node))
    return written and line in one.log(node).read_text()


def _heard_by_both(one: Any, wait_until: Until) -> None:
    """Node 2 and its neighbours hear each other from some round on."""
    begun = max(one.round(node) for node in (1, 2, 3))
    wait_until(
        lambda: all(
            one.round(node) > begun + 2 and other in one.metrics(node)[-1]["heard"]
            for node, other in ((1, 2), (3, 2), (2, 1), (2, 3))
        )
    )


def test_a_node_goes_on_with_a_certificate_that_was_replaced(
    ring: Callable[..., Any], own: Path, wait_until: Until
) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100000"}, own_keys=own)
    one.start_all()
    wait_until(lambda: all(one.round(node) >= 2 for node in range(4)))
    _again(own)
    wait_until(lambda: _said(one, 2, f"{NODE} was replaced"))
    _heard_by_both(one, wait_until)


@LONG
def test_a_node_whose_authority_is_no_longer_trusted_is_out_and_both_ends_say_so(
    ring: Callable[..., Any], own: Path, keys: Path, tmp_path: Path, wait_until: Until
) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100000"}, own_keys=own)
    others, new = Path(shutil.copytree(keys, tmp_path / "others")), tmp_path / "new"
    make(new, 5)
    one.start(2)
    one.keys = others
    for node in (0, 1, 3):
        one.start(node)
    wait_until(lambda: all(one.round(node) >= 2 for node in range(4)))
    authorities = [(folder / f"{AUTHORITY}.pem").read_bytes() for folder in (others, new)]
    (others / f"{AUTHORITY}.pem").write_bytes(b"".join(authorities))
    for node in (0, 1, 3):
        wait_until(lambda node=node: _said(one, node, "was replaced"))
    for path in new.glob("node-*"):
        shutil.copy(path, others)
    shutil.copy(new / f"{AUTHORITY}.pem", others)
    # 1 tries to reach 2, and 2 to reach 3.
    wait_until(lambda: _said(one, 1, "its certificate is not accepted"))
    wait_until(lambda: _said(one, 2, "its certificate is not accepted"))
    begun = [one.round(node) for node in range(4)]
    wait_until(lambda: all(one.round(node) > begun[node] + 3 for node in (0, 1, 3)))
    assert all(2 not in one.metrics(node)[-1]["heard"] for node in (1, 3))
    assert 0 in one.metrics(1)[-1]["heard"]
