"""Orders to SuperNodes and their answers, over Flower's Grid."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from consilience.deploy.carrying import Answers
from consilience.deploy.flower.records import fact, packed, said, unpacked
from consilience.deploy.refused import RefusedError
from consilience.deploy.site import Order
from consilience.errors import UserError
from consilience.experiment.folder import atomic_write

LOG = logging.getLogger("consilience")

PAUSE = 0.1
"""Seconds between two looks for replies; Flower's own is 3."""
INTRODUCTION = 60.0
"""Seconds that a node may take to say which site it is."""


class GridCarrier:
    """A Carrier over Flower's Grid: sites are SuperNodes.

    Which site a node is, it says once, from its node configuration (`number=2`), and that is kept: the number
    stays with the node, whatever messages say later. Another node gets it only where the first is gone and
    `strict` is off: a SuperNode without a registered key has another identity whenever it is started.

    Args:
        grid: Flower's.
        population: How many sites there are.
        deadline: Seconds that an exchange may take.
        file: Where it keeps who is who.
        strict: Whether a site's number never goes to another node.
        refused: Called with who was turned away, and why.
    """

    def __init__(
        self,
        grid: Grid,
        population: int,
        *,
        deadline: float,
        file: Path,
        strict: bool = False,
        refused: Callable[[str, str], None] = lambda who, why: None,
    ) -> None:
        self._grid, self._population, self._deadline = grid, population, deadline
        self._file, self._strict, self._refused = file, strict, refused
        self._node_of = _read(file)
        self._online: frozenset[int] = frozenset()
        self._asked: dict[str, tuple[int, float]] = {}  # who was asked who they are, and until when it counts
        self._strangers: set[int] = set()  # who was turned away
        self._gone: set[int] = set()  # nodes of sites that are not there

    def sites(self) -> Collection[int]:
        """The sites whose nodes are there; nodes that came since the last call are asked who they are."""
        self._online = frozenset(self._grid.get_node_ids())
        gone = set(self._node_of.values()) - self._online
        self._strangers = set() if gone - self._gone else self._strangers & self._online
        self._gone = gone  # whoever claimed the number of one that has gone since may try again
        self._introductions()
        waiting = {node for node, _ in self._asked.values()}
        new = self._online - set(self._node_of.values()) - self._strangers - waiting
        if new:
            asked = [self._message(said(), node, MessageType.QUERY, INTRODUCTION) for node in sorted(new)]
            until = time.monotonic() + INTRODUCTION
            for message, number in zip(asked, self._grid.push_messages(asked), strict=False):
                if number is not None:
                    self._asked[number] = (message.metadata.dst_node_id, until)
        return [site for site, node in self._node_of.items() if node in self._online]

    def ask(self, orders: Mapping[int, Order]) -> Answers:
        """The answers that came before the deadline."""
        found = Answers({})
        waiting = self._send(orders, found)
        until = time.monotonic() + self._deadline
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                site = waiting.pop(reply.metadata.reply_to_message_id, None)
                if site is not None:
                    self._take(site, reply, found)
            if not waiting or time.monotonic() > until:
                break
            time.sleep(PAUSE)
        found.failed.update(dict.fromkeys(waiting.values(), f"no answer in {self._deadline:g} s"))
        return found

    def _send(self, orders: Mapping[int, Order], found: Answers) -> dict[str, int]:
        """Send orders; the sites, by the ids of their messages. Who is not there is noted as failed."""
        contents: dict[Order, RecordDict] = {}  # sites are mostly told the same, which then travels once
        messages: dict[int, Message] = {}
        for site, order in orders.items():
            node = self._node_of.get(site)
            if node is None or node not in self._online:
                found.failed[site] = "it is not there"
                continue
            if order not in contents:
                contents[order] = packed(order.data, accepted=order.accepted)
            messages[site] = self._message(contents[order], node, MessageType.TRAIN, self._deadline)
        if not messages:
            return {}
        numbers = list(self._grid.push_messages(list(messages.values())))
        numbers += [None] * (len(messages) - len(numbers))  # type: ignore[list-item]  # what could not be sent
        sent = dict(zip(messages, numbers, strict=True))
        found.failed.update({site: "it cannot be reached" for site, number in sent.items() if number is None})
        return {number: site for site, number in sent.items() if number is not None}

    def _take(self, site: int, reply: Message, found: Answers) -> None:
        """Put a reply where it belongs. An error may come from the SuperLink itself, in a node's place."""
        try:
            found.data[site] = unpacked(self._content(reply, self._node_of[site]))
        except RefusedError as error:
            found.failed[site] = str(error)

    def _content(self, reply: Message, node: int) -> RecordDict:
        if reply.has_error():
            raise RefusedError(" ".join(f"Flower: {reply.error.reason}".split())[:500])
        if reply.metadata.src_node_id != node:
            raise RefusedError(f"the reply is from node {reply.metadata.src_node_id} instead of {node}")
        return reply.content

    # Who is who.

    def _introductions(self) -> None:
        """Hear those who say which site they are."""
        replies: Iterable[Message] = self._grid.pull_messages(list(self._asked)) if self._asked else ()
        for reply in replies:
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            try:
                self._pin(node, fact(self._content(reply, node), "number"))
            except RefusedError as error:
                self._strangers.add(node)
                LOG.warning("node %d is turned away: %s", node, error)
                self._refused(f"node {node}", str(error))
        now = time.monotonic()
        self._asked = {number: one for number, one in self._asked.items() if one[1] > now}

    def _pin(self, node: int, site: int) -> None:
        if not 0 <= site < self._population:
            raise RefusedError(f"it says it is site {site}, and there are 0 to {self._population - 1}")
        other = self._node_of.get(site)
        if other is not None and (self._strict or other in self._online):
            raise RefusedError(f"it says it is site {site}, which is node {other}")
        if other is not None:
            LOG.warning("site %d is now node %d; it was %d, which is gone", site, node, other)
        self._node_of[site] = node
        atomic_write(self._file, json.dumps({str(s): n for s, n in self._node_of.items()}).encode())

    def _message(self, content: RecordDict, node: int, kind: str, lifetime: float) -> Message:
        return Message(content, dst_node_id=node, message_type=kind, ttl=lifetime)


def _read(file: Path) -> dict[int, int]:
    """Who was who, before a restart."""
    try:
        return {int(site): int(node) for site, node in json.loads(file.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{file} is damaged; move it away to learn anew who is who") from None
