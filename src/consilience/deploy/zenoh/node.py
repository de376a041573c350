"""A node of a federation without a server: it carries a `Peer` through its rounds, over Zenoh."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from consilience.config import Config
from consilience.deploy.agreeing import Agreement
from consilience.deploy.journal import Journal
from consilience.deploy.peer import Heard, Peer
from consilience.deploy.secret import secret_of
from consilience.deploy.site import Own
from consilience.deploy.terms import RefusedError
from consilience.deploy.zenoh.auditing import Audit
from consilience.deploy.zenoh.certificates import Credentials, name_of
from consilience.deploy.zenoh.conditions import check
from consilience.deploy.zenoh.keeping import PEER_FILE, load_said, save_said
from consilience.deploy.zenoh.link import Link
from consilience.deploy.zenoh.locked import LEASE
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.reaching import Scout
from consilience.deploy.zenoh.renewing import Renewal
from consilience.deploy.zenoh.standing import carried, scores_of, standing
from consilience.deploy.zenoh.words import NONE, Word
from consilience.experiment.weights import save_weights

LOG = logging.getLogger("consilience")
TICK = 0.5
"""Seconds between two words to a neighbour for whom a node waits."""
PATIENCE = 1.0
"""Seconds without a piece of a message after which it is asked for again."""
GRACE = 1.0
"""Seconds that a node waits for more neighbours before it joins a federation that has begun."""
SILENCE = 5.0
"""Seconds for which a neighbour may be connected before it shows that it is alive."""
ANEW = 60.0
"""Seconds after which it is looked again why a neighbour is not there."""


@dataclass(frozen=True)
class Place:
    """Where a node is reached, where it reaches others, and how it proves who it is."""

    keys: Credentials
    listen: Sequence[str] = ()
    connect: Sequence[str] = ()
    lease: float = LEASE


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
        staleness = agreement.arm.config.deploy.staleness
        check(agreement.terms, number, waits=staleness is None)
        self.agreement, self.number, self.folder, self._place = agreement, number, folder, place
        self._config: Config = agreement.arm.config
        terms = agreement.terms
        self.journal = Journal(folder, terms.run, str(number))
        self.peer = Peer(
            terms,
            number,
            own,
            agreement.initial(number),
            secret=secret_of(folder, agreement),
            file=folder / PEER_FILE,
            staleness=staleness,
        )
        self._passed = dict.fromkeys(self.peer.neighbours, NONE)  # where there was nothing to say, to whom
        self.audit = Audit(self.journal, number, self.peer.neighbours)
        self.mailbox = Mailbox(self.peer.neighbours, waits=staleness is None)
        self._incarnation = int(time.time())
        self._first = self._at = self.peer.exchange
        self._round = self.peer.round
        self._scores: dict[str, float] = {}
        self._silent = set[tuple[int, str]]()  # of whom it was written down that nothing passes
        self._gathered = False
        self._stood = 0.0  # when it was last written down how things stand
        self._sought = time.monotonic() + SILENCE - ANEW  # when it was last looked why somebody is not there
        self._link = Link(
            terms,
            number,
            self.peer.neighbours,
            place.keys,
            self.mailbox,
            refuse=self.audit.refuse,
            heard=self._answer,
            seen=self._greet,
            listen=place.listen,
            connect=place.connect,
            incarnation=self._incarnation,
            lease=place.lease,
        )

        self._renewal = Renewal(place.keys, number, note=self.audit.note, renew=self._link.renew)
        self._scout = Scout(place.connect, self._say)

    # What Zenoh's threads ask for.

    def _greet(self, node: int) -> None:
        self._link.tell(self._word(node))

    def _greet_all(self) -> None:
        for node in self._passed:
            self._greet(node)

    def _answer(self, word: Word, new: bool) -> None:
        """Give a neighbour what its word asks for."""
        node = word.sender
        if new:
            self.audit.forget(node)
        self.audit.hear(word)
        given = word.wanted != NONE and self._link.send_again(node, word.wanted, word.missing)
        if new or (word.wanted != NONE and not given and self._at > word.wanted):
            self._link.tell(self._word(node))

    def _word(self, node: int, wanted: int = NONE) -> Word:
        refused, reason = self.audit.about(node)
        return Word(
            sender=self.number,
            receiver=node,
            incarnation=self._incarnation,
            samples=self.peer.own.samples,
            round=self._round,
            at=self._at,
            first=self._first,
            degree=self.peer.degree if self._gathered or self.peer.met else NONE,
            ends=int(self._renewal.keys.ends.timestamp()),
            passed=self._passed[node],
            wanted=wanted,
            missing=() if wanted == NONE else self.mailbox.missing(node, wanted),
            refused=refused,
            reason=reason,
        )

    # The rounds.

    def run(self) -> Peer:
        """Go through all rounds that are left, and return the peer as it then is."""
        self._bring_back()
        self._turn()
        with self._link:
            self._gather()
            begun = time.perf_counter()
            while not self.peer.done:
                before = self.peer.round
                heard = self._exchange()
                if self.peer.round > before:
                    took, begun = max(0.0, time.perf_counter() - begun), time.perf_counter()
                    self._note(before, took, heard)
                if time.monotonic() - self._stood >= TICK:
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
        save_said(self.folder, peer.terms.run, number, said)
        self._link.keep(number, said)
        self._link.send(number, everybody=not phase.replies)
        for node in peer.partners():
            if node not in said:
                self._passed[node] = number
                self._greet(node)
        if not self.mailbox.waits:
            return self._hear(self._newest(number))
        if not self._wait(number, silent=not phase.replies):
            return None
        now = peer.round
        return self._hear({node: (now, data) for node, data in self.mailbox.arrived(number).items()})

    def _newest(self, number: int) -> dict[int, tuple[int, bytes]]:
        """The newest message of every neighbour that is not too old, with its round (of one exchange)."""
        oldest = number - (self.peer.staleness or 0)
        before = number - self.peer.round
        return {node: (n - before, data) for node, (n, data) in self.mailbox.newest(oldest).items()}

    def _hear(self, arrived: dict[int, tuple[int, bytes]]) -> Heard:
        """Let the peer hear messages, which come with their rounds."""
        heard = self.peer.hear({node: data for node, (_, data) in arrived.items()})
        for node in heard.heard:
            if node in arrived:
                self.mailbox.neighbours[node].heard = arrived[node][0]
        for node, reason in heard.refused.items():
            self.audit.refuse(node, reason)
            self._greet(node)
        self._turn()
        return heard

    def _meet(self) -> None:
        """Let the peer know how much data its neighbours have, and theirs; tell them where that is news."""
        before = self.peer.met, self.peer.degree
        for node, known in self.mailbox.neighbours.items():
            word = known.word
            try:
                if word is not None:
                    self.peer.meet(node, word.samples, None if word.degree == NONE else word.degree)
            except RefusedError as error:
                self.audit.refuse(node, str(error))
        if before != (self.peer.met, self.peer.degree):
            self._greet_all()

    def _wait(self, number: int, *, silent: bool) -> bool:
        """Wait for the messages of an exchange; return False where the node has joined a later round."""
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
                        self.audit.refuse(
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
        for node in missing or self._passed:
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
        self.audit.exchange, self.audit.round = self._at, self._round
        self.mailbox.turn({} if self.peer.done else self.peer.expected())

    def _quorum(self) -> int:
        """How many must be heard, the node itself among them, before an exchange ends."""
        quorum, everybody = self._config.deploy.quorum, 1 + len(self._passed)
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
            self._meet()
            with box.changed:
                there = {node: one.word for node, one in box.neighbours.items() if one.alive}
                ready = [word for word in there.values() if word is not None and word.degree != NONE]
                if len(ready) == len(self._passed):
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
                self._stand([node for node in self._passed if node not in there])
        self._gathered = True
        self._meet()
        lead = box.lead(self._at, self._round)
        if lead is not None and not everybody:
            self._join(lead + 1)

    def _linger(self) -> None:
        """Stay until neighbours that are behind have got the last message."""
        box, deadline = self.mailbox, time.monotonic() + self._config.deploy.deadline
        greeted = 0.0
        while self.mailbox.waits and time.monotonic() < deadline:
            if time.monotonic() - greeted >= TICK:
                greeted = time.monotonic()
                self._greet_all()
            with box.changed:
                if not any(one.alive and one.at < self._at for one in box.neighbours.values()):
                    break
                box.changed.wait(TICK)
        self._link.flush()

    # What is kept and written down.

    def _bring_back(self) -> None:
        """Have ready what was said before the node was stopped."""
        before = self._at - 1
        said = load_said(self.folder, self.peer.terms.run, before)
        if said is not None:
            self._link.keep(before, said)
            self._first = before

    def _note(self, round_number: int, seconds: float, heard: Heard | None) -> None:
        every = self._config.evaluate.every
        if (round_number + 1) % every == 0 or self.peer.done:
            self._scores = scores_of(self.agreement, self.peer)
        whom = [] if heard is None else list(heard.heard)
        line = {"seconds": seconds, "heard": whom, **carried(self.peer), **self._scores}
        if not self.mailbox.waits:
            line["ages"] = {
                str(node): round_number - one.heard
                for node, one in self.mailbox.neighbours.items()
                if node in whom
            }
        self.journal.note(round_number + 1, line)

    def _stand(self, waiting: Sequence[int] = ()) -> None:
        """Write down how things stand."""
        self._stood = time.monotonic()
        if not self.peer.done:
            self._look_around()
        found = {"refusals": self.audit.count, "sent": self._link.sent, "trouble": list(self._scout.lines)}
        self.journal.stand({**standing(self.peer, self.mailbox, waiting), **found, **self._scores})

    def _look_around(self) -> None:
        """Notice what nobody tells: neighbours of whom nothing passes, certificates, who is not connected."""
        for node, line in self._link.silent(SILENCE).items():
            if (node, line) not in self._silent:
                self._silent.add((node, line))
                self.audit.refuse(node, line)
                self._greet(node)
        words = [one.word for one in self.mailbox.neighbours.values() if one.word is not None]
        self._renewal.look(words, self._link.linked)
        self._seek()

    def _say(self, line: str, refused: bool) -> None:
        if refused:
            self.audit.note(self.number, line)
        else:
            LOG.warning("node %d: %s", self.number, line)

    def _seek(self) -> None:
        """Have a look now and then why neighbours are not connected."""
        missing = sorted(set(self._passed) - self._link.linked)
        if not missing:
            self._scout.rest()
            self._sought = time.monotonic() + SILENCE - ANEW
        elif time.monotonic() - self._sought >= ANEW:
            self._sought = time.monotonic()
            self._scout.look(
                self._renewal.keys, [name_of(one) for one in self._passed], [name_of(one) for one in missing]
            )

    def _finish(self) -> None:
        peer, arm = self.peer, self.agreement.arm
        self._stand()
        save_weights(self.folder, arm, peer.terms.task, [(0, None, peer.evaluated_model())])
