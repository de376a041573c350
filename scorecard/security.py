"""Certificates that are not what they should be, and nodes that call themselves by other names."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import zenoh

from consilience.cli.noding import run_node
from consilience.config import load_config
from consilience.deploy.agreeing import agree
from consilience.deploy.journal import Journal, read_lines
from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.auditing import Audit
from consilience.deploy.zenoh.certificates import AUTHORITY, Credentials, credentials, make, name_of
from consilience.deploy.zenoh.locked import spoken, token
from consilience.deploy.zenoh.reaching import trouble
from consilience.deploy.zenoh.words import WORD, Word, read_word
from consilience.errors import UserError
from scorecard.finding import Finding, Tally, demand
from scorecard.launching import until
from scorecard.rings import MOST, Ring, keyed_rings
from scorecard.sessions import Listener, lawless, say
from scorecard.spots import at_peer, rewritten

# 17: another sender's name


LIES = [(kind, *pair) for pair in ((1, 3), (3, 1)) for kind in ("word", "key", "message")]
"""What is said, by whom, and whose number it bears."""


def impostors(trials: int, folder: Path) -> Finding:
    """Check 17: nodes with valid certificates that call themselves by a neighbour's number."""
    tally = Tally()
    with keyed_rings(folder) as (ring, keys):
        # Of what is refused again and again a node writes down the first times, so another one is told again.
        for first in range(0, trials, len(LIES)):
            one = ring(f"ring {first}")
            one.start(0)
            until(lambda one=one: one.status(0))
            for number, (kind, liar, victim) in enumerate(LIES[: trials - first]):
                with tally.trial(f"{kind} of {liar} as {victim}"):
                    if kind == "message":  # under its own name, and with another's inside
                        reason, _ = at_peer().hear(rewritten(at_peer().honest, sender=0))
                        demand("it calls itself" in str(reason), f"refused because {reason}")
                    else:
                        _lie(one, keys, kind, liar, victim, number + 1)
            one.kill(0)
    return tally.finding()


def _lie(one: Ring, keys: Path, kind: str, liar: int, victim: int, incarnation: int) -> None:
    """Call oneself by a neighbour's number before node 0, and look at what both ends have written down."""
    terms = agree(load_config(one.file, [])).terms
    before, place = len(one.refusals(0)), one.folder / f"liar {incarnation}"
    heard = Audit(Journal(place, terms.run, str(liar)), liar, [0])
    address = f"tls/127.0.0.1:{one.ports[0]}"
    with lawless(terms.run, address, liar, credentials(keys, liar)) as session:
        subscribed = session.declare_subscriber(
            spoken(terms.run, 0, liar, WORD),
            lambda sample: heard.hear(read_word(bytes(sample.payload), terms, 0, liar)),
        )
        said = victim if kind == "key" else liar
        kept = session.liveliness().declare_token(token(terms.run, said, incarnation))
        word = Word(victim, 0, incarnation, 1, 0, 0, 0, degree=2, ends=0).encode(terms)

        def refused() -> bool:  # it may not be connected yet
            session.put(spoken(terms.run, said, 0, WORD), word)
            say(session, spoken(terms.run, victim, 0, 0))
            return len(one.refusals(0)) > before

        until(refused)
        until(lambda: read_lines(place / "audit.jsonl"))
        kept.undeclare()
        subscribed.undeclare()
    demand(one.refusals(0)[-1]["from"] == str(liar), f"{one.refusals(0)[-1]}")
    demand(one.status(0)["neighbours"][str(victim)]["bytes"] == 0, "the neighbour was taken for heard")


# 18: certificates that are wrong


def strangers(trials: int, folder: Path) -> Finding:
    """Check 18: no certificate, a rogue, an expired and another's one, plaintext, a missing key."""
    tally = Tally()
    with keyed_rings(folder) as (ring, keys):
        one = ring()
        listener = Listener(agree(load_config(one.file, [])).terms, keys, one.ports[0])
        with listener.link:
            cases = _cases(folder, keys, listener)
            for name, (attempt, start, cause) in list(cases.items())[:trials]:
                with tally.trial(name):
                    demand(_refusal(attempt), "it was let in")
                    said = _refusal(start)
                    demand(cause in said and "\n" not in said, f"it said {said or 'nothing'}")
            lawless(listener.terms.run, listener.address, 1, credentials(keys, 1)).close()  # the good one is
        demand(not listener.seen, "somebody was heard")
    return tally.finding()


def _refusal(attempt: Callable[[], object]) -> str:
    """Why an attempt was refused; nothing where it was not."""
    try:
        attempt()
    except (zenoh.ZError, UserError, RefusedError) as error:
        return str(error)
    return ""


Case = tuple[Callable[[], object], Callable[[], object], str]
"""An attempt to connect, an attempt to start, and what the latter must say."""


def _cases(folder: Path, keys: Path, listener: Listener) -> dict[str, Case]:
    rogue, expired, other, bare = (folder / name for name in ("rogue", "expired", "other", "bare"))
    make(rogue, 2)
    expired.mkdir()
    for kind in ("pem", "key"):
        shutil.copy(keys / f"{AUTHORITY}.{kind}", expired)
    make(expired, 2, days=-1)
    for copied in (other, bare):
        shutil.copytree(keys, copied)
    for kind in ("pem", "key"):
        shutil.copy(keys / f"{name_of(2)}.{kind}", other / f"{name_of(1)}.{kind}")
    (bare / f"{name_of(1)}.key").unlink()
    good = credentials(keys, 1)

    def with_files(place: Path) -> Credentials:
        return Credentials(good.authority, place / "node-1.pem", place / "node-1.key", good.ends)

    def join(own: Credentials, **changes: Any) -> Callable[[], object]:
        return lambda: lawless(listener.terms.run, listener.address, 1, own, patience=700, **changes).close()

    def start(place: Path) -> Callable[[], object]:
        return lambda: credentials(place, 1)

    def plainly() -> object:
        where = listener.address.replace("tls", "tcp")
        return run_node(folder / "ring" / "federation.yaml", [], 1, keys, [], [where], None, folder / "out")

    anonymous = {"connect_certificate": None, "connect_private_key": None, "enable_mtls": False}
    plain = {
        "transport": {"link": {"protocols": ["tcp"], "tls": {}}},
        "connect": {
            "endpoints": [listener.address.replace("tls", "tcp")],
            "timeout_ms": 700,
            "exit_on_failure": True,
        },
    }
    mixed = shutil.copytree(rogue, folder / "mixed")
    shutil.copy(keys / f"{AUTHORITY}.pem", mixed)
    stranger = replace(credentials(rogue, 1), authority=good.authority)
    return {
        "none": (join(good, tls=anonymous), start(folder), f"{AUTHORITY}.pem is missing"),
        "rogue": (join(with_files(rogue)), start(mixed), "was not issued by"),
        "rogue, seen from outside": (
            join(with_files(rogue)),
            lambda: trouble(listener.address, stranger, [name_of(0)]),
            "does not accept this node's certificate",
        ),
        "expired": (join(with_files(expired)), start(expired), "which is not now"),
        "of another node": (_unheard(listener, keys), start(other), "is of node-2, not of node-1"),
        "plaintext": (join(good, **plain), plainly, "is no address like tls/"),
        "no key": (lambda: credentials(bare, 1), start(bare), "node-1.key is missing"),
    }


def _unheard(listener: Listener, keys: Path) -> Callable[[], object]:
    """Speaks as node 1 with the certificate of node 2; RefusedError once that was noticed and not heard."""

    def attempt() -> None:
        run, before = listener.terms.run, len(listener.refused)
        with lawless(run, listener.address, 2, credentials(keys, 2)) as session:
            session.liveliness().declare_token(token(run, 1, 7))
            say(session, spoken(run, 1, 0, 0))
            until(lambda: len(listener.refused) > before)
            who, reason = listener.refused[-1]
            if who == name_of(2) and not listener.seen and not listener.mailbox.arrived(0):
                raise RefusedError(reason)

    return attempt


# 19: a certificate that expires in a run


def expiring(trials: int, folder: Path) -> Finding:
    """Check 19: the certificate of a node runs out while it takes part; later it gets another."""
    tally = Tally()
    for days, warned in ((6.0, True), (8.0, False)):
        with tally.trial(f"{days:g} days before its end"):
            make(folder / f"{days:g}", 2, days=days)
            said = credentials(folder / f"{days:g}", 1).warning()
            demand((said is not None) == warned, f"it says {said}")
    for trial in range(trials):
        place = folder / str(trial)
        place.mkdir()
        with tally.trial("expired in a run"), keyed_rings(place) as (ring, keys):
            _expire(ring, keys, tally)
    return tally.finding()


def _expire(ring: Callable[..., Ring], keys: Path, tally: Tally) -> None:
    certificate = keys / f"{name_of(2)}.pem"
    certificate.unlink()
    make(keys, MOST + 1, days=25 / 86_400)
    ends = credentials(keys, 2).ends.timestamp()
    one = ring(changes={"rounds: 2": "rounds: 100000"})
    one.start_all()
    until(lambda: all(one.round(node) >= 2 for node in range(4)))
    for node in (1, 3):
        until(lambda node=node: not one.status(node)["neighbours"]["2"]["alive"])
        until(lambda node=node: _said(one, node, "its certificate has expired"))
        tally.most("closed after expiry (s)", time.time() - ends)
    demand(time.time() > ends, "it was closed before its end")
    demand(_said(one, 2, "has expired"), "the node itself says nothing")
    begun = one.round(0)
    until(lambda: one.round(0) > begun + 3)
    certificate.unlink()
    make(keys, MOST + 1)
    until(lambda: _said(one, 2, f"{certificate.name} was replaced"))
    until(lambda: all(2 in one.metrics(node)[-1]["heard"] for node in (1, 3)))


def _said(one: Ring, node: int, line: str) -> bool:
    """Whether a node has written something down, and shown it."""
    written = any(line in entry["reason"] for entry in one.refusals(node))
    return written and line in one.log(node).read_text()
