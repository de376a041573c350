"""A node of a federation without a server: it carries a `Peer` through its rounds, over Zenoh."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from consilience.config import Config
from consilience.deploy import kept
from consilience.deploy.agreeing import Agreement
from consilience.deploy.journal import Journal
from consilience.deploy.peer import Heard, Peer
from consilience.deploy.site import Own, tally_of
from consilience.deploy.terms import RefusedError, Terms
from consilience.deploy.zenoh.certificates import Credentials
from consilience.deploy.zenoh.link import Link
from consilience.deploy.zenoh.locked import LEASE
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.words import NONE, Word
from consilience.errors import UserError
from consilience.experiment.weights import save_weights

LOG = logging.getLogger("consilience")
PEER_FILE, SAID_FILE, SECRET_FILE = "peer.safetensors", "said.safetensors", "secret"
TICK = 0.5
"""Seconds between two words to a neighbour for whom a node waits."""
PATIENCE = 1.0
"""Seconds without a piece of a message after which it is asked for again."""
GRACE = 1.0
"""Seconds that a node waits for more neighbours before it joins a federation that has begun."""
REPEATED = 20
"""How often the same refusal is written down; after that it is counted."""


@dataclass(frozen=True)
class Place:
    """Where a node is reached, where it reaches others, and how it proves who it is."""

    keys: Credentials
    listen: Sequence[str] = ()
    connect: Sequence[str] = ()
    lease: float = LEASE


@dataclass
class _Told:
    """What a node has to tell a neighbour in its next word."""

    passed: int = NONE
    refused: int = NONE
    reason: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    """How often something of it was refused, by reason."""


class Node:
    """A peer at work.

    Args:
        agreement: The terms, and what the configuration says beside them.
        number: Which node it is.
        own: Its data.
        folder: Where it keeps its files.
        place: How it is connected.
    """

    def __init__(self, agreement: Agreement, number: int, own: Own, folder: Path, place: Place) -> None:
        check(agreement.terms, number)
        self.agreement, self.number, self.folder, self._place = agreement, number, folder, place
        self._config: Config = agreement.arm.config
        terms = agreement.terms
        self.journal = Journal(folder, terms.run, str(number))
        self.peer = Peer(
            terms,
            number,
            own,
            agreement.initial(number),
            secret=None if self._config.deploy.secret == "seed" else _secret(folder / SECRET_FILE),
            file=folder / PEER_FILE,
        )
        self._told = {node: _Told() for node in self.peer.neighbours}
        self._lines: dict[tuple[str, str], int] = {}
        self._auditing = threading.Lock()
        self.refusals = 0
        """How often something was refused."""
        self.mailbox = Mailbox(self.peer.neighbours, self._refuse)
        self._incarnation = int(time.time())
        self._first = self._at = self.peer.exchange
        self._round = self.peer.round
        self._scores: dict[str, float] = {}
        self._link = Link(
            terms,
            number,
            self.peer.neighbours,
            place.keys,
            self.mailbox,
            refuse=self._refuse,
            heard=self._answer,
            seen=self._greet,
            listen=place.listen,
            connect=place.connect,
            incarnation=self._incarnation,
            lease=place.lease,
        )

    # What Zenoh's threads ask for.

    def _refuse(self, other: int | str, reason: str) -> None:
        """Write down that something was refused, and have it told to whom it concerns."""
        with self._auditing:
            self.refusals += 1
            count = self._lines[str(other), reason] = self._lines.get((str(other), reason), 0) + 1
            if count <= REPEATED:
                more = "; more of this is counted, not written down" if count == REPEATED else ""
                self.journal.refuse(other, reason + more, self._round)
                LOG.warning("node %d: %s is refused: %s", self.number, other, reason)
            told = self._told.get(other) if isinstance(other, int) else None
            if told is not None:
                told.refused, told.reason = self._at, reason

    def _greet(self, node: int) -> None:
        self._link.tell(self._word(node))

    def _greet_all(self) -> None:
        for node in self._told:
            self._greet(node)

    def _answer(self, word: Word, new: bool) -> None:
        """Give a neighbour what its word asks for."""
        told, node = self._told[word.sender], word.sender
        if word.refused != NONE and word.reason and told.lines.get(word.reason) != word.refused:
            told.lines[word.reason] = word.refused
            with self._auditing:
                self.journal.refuse(node, f"it has refused what this node said: {word.reason}", self._round)
        given = word.wanted != NONE and self._link.send_again(node, word.wanted, word.missing)
        if new or (word.wanted != NONE and not given and self._at > word.wanted):
            self._link.tell(self._word(node))

    def _word(self, node: int, wanted: int = NONE) -> Word:
        told = self._told[node]
        return Word(
            sender=self.number,
            receiver=node,
            incarnation=self._incarnation,
            samples=self.peer.own.samples,
            round=self._round,
            at=self._at,
            first=self._first,
            degree=len(self._told),
            passed=told.passed,
            wanted=wanted,
            missing=() if wanted == NONE else self.mailbox.missing(node, wanted),
            refused=told.refused,
            reason=told.reason,
        )

    # The rounds.

    def run(self) -> Peer:
        """Go through all rounds that are left, and return the peer as it then is."""
        warning = self._place.keys.warning()
        if warning:
            LOG.warning("%s", warning)
        self._bring_back()
        self._turn()
        with self._link:
            self._gather()
            begun = time.perf_counter()
            while not self.peer.done:
                before = self.peer.round
                heard = self._exchange()
                if self.peer.round > before:
                    took, begun = time.perf_counter() - begun, time.perf_counter()
                    self._note(before, took, heard)
                self._stand()
            self._linger()
        self._finish()
        return self.peer

    def _exchange(self) -> Heard | None:
        """One exchange; None where others were so far ahead that the node has joined them instead."""
        peer, number = self.peer, self._at
        phase = peer.terms.phase(peer.address)
        self._meet()
        said = peer.speak()
        self._keep(number, said)
        self._link.send(number, everybody=not phase.replies)
        for node in peer.partners():
            if node not in said:
                self._told[node].passed = number
                self._greet(node)
        if not self._wait(number, silent=not phase.replies):
            return None
        heard = peer.hear(self.mailbox.arrived(number))
        for node in heard.heard:
            if node != self.number:
                self.mailbox.neighbours[node].heard = heard.address.round
        for node, reason in heard.refused.items():
            self._refuse(node, reason)
            self._greet(node)
        self._turn()
        return heard

    def _meet(self) -> None:
        """Let the peer know how much data its neighbours say they have."""
        for node, known in self.mailbox.neighbours.items():
            word = known.word
            try:
                if word is not None:
                    self.peer.meet(node, word.samples)
            except RefusedError as error:
                self._refuse(node, str(error))

    def _wait(self, number: int, *, silent: bool) -> bool:
        """Wait for the messages of an exchange; return False where the node has joined a later round instead."""
        box, quorum = self.mailbox, self._quorum()
        deadline = time.monotonic() + self._config.deploy.deadline
        everybody = self._config.deploy.quorum == "all"
        asked = time.monotonic()
        while True:
            with box.changed:
                missing = box.awaited(number, self.peer.partners(), silent=silent, all_of_them=everybody)
                enough = 1 + len(box.arrived(number)) >= quorum or everybody
                if enough and not missing:
                    return True
                lead = box.lead(number, self._round)
                if lead is not None and not everybody:
                    break
                now = time.monotonic()
                if now >= deadline and enough and not everybody:
                    for node in missing:
                        self._refuse(
                            node, f"its message of exchange {number} has not come before the deadline"
                        )
                    return True
                box.changed.wait(max(0.01, min(TICK, deadline - now if now < deadline else TICK)))
            if time.monotonic() - asked >= TICK:
                asked = time.monotonic()
                self._ask(number, missing)
        self._join(lead + 1)
        return False

    def _ask(self, number: int, missing: Sequence[int]) -> None:
        """Tell those of whom nothing has come for a while how far this node is, and what it misses."""
        for node in missing or self._told:
            known = self.mailbox.neighbours[node]
            if time.monotonic() - known.moved >= PATIENCE:
                self._link.tell(self._word(node, number))
        self._stand(missing)

    def _join(self, round_number: int) -> None:
        """Go on in a round that others will be in."""
        round_number = min(round_number, self.peer.terms.rounds)
        LOG.warning("node %d: joins round %d, after %d", self.number, round_number + 1, self.peer.round)
        self.peer.join(round_number)
        self._first = self.peer.exchange
        self._turn()
        self._greet_all()

    def _turn(self) -> None:
        """Turn to the exchange in which the peer is."""
        self._at, self._round = self.peer.exchange, self.peer.round
        self.mailbox.turn({} if self.peer.done else self.peer.expected())

    def _quorum(self) -> int:
        """How many must be heard, the node itself among them, before an exchange ends."""
        quorum, everybody = self._config.deploy.quorum, 1 + len(self._told)
        if quorum == "all":
            return everybody
        return min(everybody, quorum if isinstance(quorum, int) else -int(-quorum * everybody // 1))

    def _gather(self) -> None:
        """Wait for the neighbours; where the federation has begun already, not for all of them."""
        box, everybody = self.mailbox, self._config.deploy.quorum == "all"
        deadline = time.monotonic() + self._config.deploy.deadline
        met: float | None = None
        greeted = 0.0
        while True:
            with box.changed:
                there = {node: one.word for node, one in box.neighbours.items() if one.alive}
                if len(there) == len(self._told):
                    break
                begun = self._at > 0 or any(word is not None and word.at > 0 for word in there.values())
                met = met or (time.monotonic() if there else None)
                late = begun and met is not None and time.monotonic() - met > GRACE
                if not everybody and (late or time.monotonic() > deadline):
                    break
                box.changed.wait(TICK)
            if time.monotonic() - greeted >= TICK:
                greeted = time.monotonic()
                self._greet_all()
                self._stand([node for node in self._told if node not in there])
        lead = box.lead(self._at, self._round)
        if lead is not None and not everybody:
            self._join(lead + 1)

    def _linger(self) -> None:
        """Stay until neighbours that are behind have got the last message."""
        box, deadline = self.mailbox, time.monotonic() + self._config.deploy.deadline
        greeted = 0.0
        while time.monotonic() < deadline:
            if time.monotonic() - greeted >= TICK:
                greeted = time.monotonic()
                self._greet_all()
            with box.changed:
                if not any(one.alive and one.at < self._at for one in box.neighbours.values()):
                    break
                box.changed.wait(TICK)
        time.sleep(0.1)  # the last words are on their way

    # What is kept and written down.

    def _keep(self, number: int, said: dict[int, bytes]) -> None:
        """Have messages ready for those who ask, also after a restart."""
        self._link.keep(number, said)
        distinct = list(dict.fromkeys(said.values()))
        parts = {
            str(place): {"bytes": {"all": torch.frombuffer(bytearray(data), dtype=torch.uint8)}}
            for place, data in enumerate(distinct)
        }
        whose = ",".join(f"{node}:{distinct.index(data)}" for node, data in said.items())
        kept.save(
            self.folder / SAID_FILE, self.peer.terms.run, parts, {"number": str(number), "whose": whose}
        )

    def _bring_back(self) -> None:
        """Have ready what was said before the node was stopped."""
        found = kept.load(self.folder / SAID_FILE, self.peer.terms.run)
        if found is None or int(found[1]["number"]) >= self._at:
            return
        parts, fields = found
        data = {place: bytes(state["bytes"]["all"].numpy()) for place, state in parts.items()}
        whose = [one.split(":") for one in fields["whose"].split(",") if one]
        self._link.keep(int(fields["number"]), {int(node): data[place] for node, place in whose})
        self._first = int(fields["number"])

    def _note(self, round_number: int, seconds: float, heard: Heard | None) -> None:
        every = self._config.evaluate.every
        if (round_number + 1) % every == 0 or self.peer.done:
            self._scores = scores_of(self.agreement, self.peer)
        whom = [] if heard is None else list(heard.heard)
        self.journal.note(
            round_number + 1, {"seconds": seconds, "heard": whom, **self._bytes(), **self._scores}
        )

    def _bytes(self) -> dict[str, int]:
        traffic = self.peer.traffic
        return {"bytes_up": sum(traffic.up.values()), "bytes_down": sum(traffic.down.values())}

    def _stand(self, waiting: Sequence[int] = ()) -> None:
        """Write down how things stand."""
        with self.mailbox.changed:
            neighbours = {
                str(node): {
                    "alive": one.alive,
                    "round": None if one.word is None else one.word.round,
                    "staleness": None if one.heard == NONE else max(0, self.peer.round - 1 - one.heard),
                    "bytes": one.received,
                }
                for node, one in self.mailbox.neighbours.items()
            }
        self.journal.stand(
            {
                "round": self.peer.round,
                "rounds": self.peer.terms.rounds,
                "neighbours": neighbours,
                "waiting": list(waiting),
                "refusals": self.refusals,
                "sent": self._link.sent,
                **self._bytes(),
                **self._scores,
                "done": self.peer.done,
            }
        )

    def _finish(self) -> None:
        peer, arm = self.peer, self.agreement.arm
        self._stand()
        save_weights(self.folder, arm, peer.terms.task, [(0, None, peer.evaluated_model())])


def check(terms: Terms, number: int) -> None:
    """Refuse terms that nodes over Zenoh cannot keep."""
    if terms.adjacency is None:
        raise UserError(
            "nodes need a graph: set topology (a federation with a server: consilience deploy flower)"
        )
    if not 0 <= number < terms.population:
        raise UserError(f"there is no node {number}: there are 0 to {terms.population - 1}")
    complete = bool(terms.adjacency.sum() == terms.population * (terms.population - 1))
    rounds = {terms.algorithm.at(one) for one in range(terms.rounds)}
    phases = [*terms.algorithm.setup(), *(phase for one in rounds for phase in one.phases())]
    if not complete and any(phase.flooded for phase in phases):
        raise UserError(
            f"{terms.algorithm.name} passes messages on, and a certificate proves the last hop alone: without "
            "signatures of those who wrote them it runs on a complete graph only"
        )


def scores_of(agreement: Agreement, peer: Peer) -> dict[str, float]:
    """What a node's model scores, on the global test set where the node has it and on its own rows."""
    found = {f"{kind}_{name}": value for kind, one in peer.scores().items() for name, value in one.items()}
    tested, model = agreement.tested(), peer.evaluated_model()
    if tested is not None and model:
        sums = tally_of(agreement.terms, tested[0], model, tested[1])
        found |= {f"test_{name}": float(value) for name, value in agreement.terms.task.scores(sums).items()}
    return found


def _secret(path: Path) -> int:
    """The node's own secret, drawn once."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(str(secrets.randbits(62)))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    try:
        return int(path.read_text())
    except ValueError:
        raise UserError(f"{path} is damaged; move it away, and {PEER_FILE} with it") from None
