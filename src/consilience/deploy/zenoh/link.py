"""A node's Zenoh session: it brings neighbours' pieces and words, and takes the node's own to them."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import zenoh

from consilience.deploy.terms import RefusedError, Terms
from consilience.deploy.zenoh.certificates import Credentials, name_of
from consilience.deploy.zenoh.locked import LEASE, session_config, spoken, token
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.parcels import cut
from consilience.deploy.zenoh.words import WORD, Word, read_word
from consilience.errors import UserError

LOG = logging.getLogger("consilience")
KEPT = 2
"""The number of exchanges whose messages are kept, for those who have not got them."""

NUMBER = re.compile(r"[0-9]{1,11}")
"""How a number stands in a key."""

Pieces = list[tuple[bytes, bytes]]


class Link:
    """A node's session; use it in a `with`, since a process that does not close it seems alive to others.

    Args:
        terms: What was agreed on.
        number: Which node it is.
        neighbours: Whom it hears, and who hears it.
        keys: How it proves who it is.
        mailbox: Where what comes is put.
        refuse: Called with a name and why something of it was refused.
        heard: Called with a neighbour's word and whether the neighbour is new.
        seen: Called with a neighbour that has appeared.
        listen: Where others can reach it.
        connect: Where others can be reached.
        incarnation: When it was started, in seconds.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        neighbours: Sequence[int],
        keys: Credentials,
        mailbox: Mailbox,
        *,
        refuse: Callable[[int | str, str], None],
        heard: Callable[[Word, bool], None],
        seen: Callable[[int], None],
        listen: Sequence[str],
        connect: Sequence[str],
        incarnation: int,
        lease: float = LEASE,
    ) -> None:
        self._terms, self._number, self._neighbours = terms, number, neighbours
        self._mailbox, self._refuse, self._heard, self._seen = mailbox, refuse, heard, seen
        self._incarnation = incarnation
        self._config = partial(
            session_config, terms.run, number, neighbours, listen=listen, connect=connect, lease=lease
        )
        self._keys = keys
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._said: dict[int, dict[int, Pieces]] = {}
        self._linked: dict[int, float] = {}
        self._astray = set[int]()  # neighbours that are in another run
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._ended = threading.Event()
        self.sent = 0
        """The bytes that were handed to Zenoh; what goes to all neighbours counts once."""

    def __enter__(self) -> Link:
        self._session = self._opened()
        with ExitStack() as opening:
            opening.callback(self._close)
            self._declare()
            worker = threading.Thread(target=self._work, name="sending", daemon=True)
            worker.start()
            opening.callback(worker.join, 5.0)
            opening.callback(self._jobs.put, None)
            opening.callback(self._ended.set)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _opened(self) -> zenoh.Session:
        try:
            return zenoh.open(zenoh.Config.from_json5(self._config(self._keys)))
        except zenoh.ZError as error:
            raise UserError(f"Zenoh does not start: {_first(error)}") from None

    def _close(self) -> None:
        close: Callable[[], None] = self._session.close
        close()

    def renew(self, keys: Credentials) -> None:
        """Go on with other credentials: connections are made anew, and neighbours see the node come back."""
        self._keys = keys
        self._close()
        with self._lock:
            self._linked.clear()
        self._mailbox.alone()
        self._session = self._opened()
        self._declare()

    def _declare(self) -> None:
        """Listen to all neighbours, and only then be seen: who sees this node may speak at once."""
        run, mine = self._terms.run, self._number
        self._declared: list[Any] = [
            self._session.info.declare_link_events_listener(self._connected, history=True)
        ]
        for node in self._neighbours:
            for key in (spoken(run, node, None, "*"), spoken(run, node, mine, "*")):
                self._declared.append(self._session.declare_subscriber(key, self._came))
            seen = self._session.liveliness().declare_subscriber(
                token("*", node, "*"), self._lives, history=True
            )
            self._declared.append(seen)
        self._declared.append(self._session.liveliness().declare_token(token(run, mine, self._incarnation)))

    # What comes, in Zenoh's threads.

    def _connected(self, event: zenoh.LinkEvent) -> None:
        """Write down who connects that has no business here; access control lets nothing of it through."""
        name, known = event.link.auth_identifier, {name_of(node): node for node in self._neighbours}
        if name in known:
            with self._lock:
                if event.kind == zenoh.SampleKind.PUT:
                    self._linked.setdefault(known[name], time.monotonic())
                else:
                    self._linked.pop(known[name], None)
        elif event.kind == zenoh.SampleKind.PUT:
            self._refuse(
                name or event.link.dst, "it is connected, and is no neighbour: nothing of it is heard"
            )

    @property
    def linked(self) -> set[int]:
        """The neighbours that are connected, whatever they say."""
        with self._lock:
            return set(self._linked)

    def silent(self, seconds: float) -> dict[int, str]:
        """The neighbours that have been connected for so long without being heard, and what is known of them.

        Access control drops what they say under another name, or in keys that this node does not hear,
        without a word: that nothing comes is all that can be noticed.
        """
        with self._lock:
            linked = dict(self._linked)
        found = {}
        for node, begun in linked.items():
            known = self._mailbox.neighbours[node]
            if time.monotonic() - max(begun, known.left) < seconds:
                continue  # it has not had the time yet, or is about to go
            if node not in self._astray and not known.tokens:
                found[node] = (
                    "it is connected, and nothing of it passes: it speaks under another name, or has another "
                    "graph"
                )
            elif known.tokens and not known.alive:
                found[node] = "it is connected and there, and says nothing that passes"
        return found

    def _lives(self, sample: zenoh.Sample) -> None:
        _, run, node, _, incarnation = str(sample.key_expr).split("/")
        if not NUMBER.fullmatch(incarnation):
            return
        if run != self._terms.run:
            if sample.kind == zenoh.SampleKind.PUT:
                self._astray.add(int(node))
                self._refuse(int(node), f"it is in another run ({run[:32]!r}): its configuration differs")
        elif sample.kind == zenoh.SampleKind.PUT:
            self._mailbox.appear(int(node), int(incarnation))
            self._seen(int(node))
        else:
            self._mailbox.vanish(int(node), int(incarnation))

    def _came(self, sample: zenoh.Sample) -> None:
        _, _, sender, _, what = str(sample.key_expr).split("/")
        node = int(sender)
        try:
            attached = sample.attachment
            data = sample.payload.to_bytes()
            if what == WORD:
                word = read_word(data, self._terms, node, self._number)
                self._heard(word, self._mailbox.tell(word))
            elif NUMBER.fullmatch(what):
                self._mailbox.take(node, int(what), b"" if attached is None else attached.to_bytes(), data)
            else:
                raise RefusedError(f"{what[:40]!r} is no exchange")
        except RefusedError as error:
            self._refuse(node, str(error))

    # What goes, in a thread of its own, so that a neighbour that is slow keeps nobody waiting.

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except zenoh.ZError as error:
                LOG.warning("node %d: %s", self._number, _first(error))

    def _put(self, key: str, data: bytes, label: bytes | None = None) -> None:
        if self._ended.is_set():
            return
        self._session.put(
            key,
            data,
            attachment=label,
            congestion_control=zenoh.CongestionControl.BLOCK,
            allowed_destination=zenoh.Locality.REMOTE,
        )
        self.sent += len(data)

    def flush(self) -> None:
        """Wait until what was to be sent has been handed to Zenoh, but not for long."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait(5.0)

    def tell(self, word: Word) -> None:
        """Send a word."""
        key = spoken(self._terms.run, self._number, word.receiver, WORD)
        self._jobs.put(lambda: self._put(key, word.encode(self._terms)))

    def keep(self, number: int, said: Mapping[int, bytes]) -> None:
        """Have the messages of an exchange ready for those who ask for them; older ones are forgotten."""
        cuts: dict[bytes, Pieces] = {}
        whole = {
            node: cuts.setdefault(data, cut(data, number, self._incarnation)) for node, data in said.items()
        }
        with self._lock:
            self._said = {n: one for n, one in self._said.items() if number - KEPT < n} | {number: whole}

    def send(self, number: int, *, everybody: bool) -> None:
        """Send the messages of an exchange, one to everybody or one to each."""
        with self._lock:
            said = dict(self._said[number])
        if everybody and said:
            said = {-1: next(iter(said.values()))}
        for node, pieces in said.items():
            key = spoken(self._terms.run, self._number, None if everybody else node, number)
            for label, piece in pieces:
                self._jobs.put(lambda key=key, piece=piece, label=label: self._put(key, piece, label))  # type: ignore[misc]

    def send_again(self, node: int, number: int, missing: Sequence[int]) -> bool:
        """Send a neighbour the pieces that it misses; return whether there are any."""
        with self._lock:
            pieces = self._said.get(number, {}).get(node, [])
        key = spoken(self._terms.run, self._number, node, number)
        for index in missing or range(len(pieces)):
            if index < len(pieces):
                label, piece = pieces[index]
                self._jobs.put(lambda piece=piece, label=label: self._put(key, piece, label))  # type: ignore[misc]
        return bool(pieces)


def _first(error: Exception) -> str:
    """What an error of Zenoh says, without where in Zenoh that was."""
    return str(error).partition(" at /")[0].strip()[:200]
