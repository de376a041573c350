"""What carries messages between members, and the way of a federation from its first to its last round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from consilience import wire
from consilience.deploy.hub import Hub, Report
from consilience.deploy.peer import Heard, Peer
from consilience.deploy.site import Order, Site
from consilience.deploy.terms import RefusedError


@dataclass(frozen=True)
class Answers:
    """What came back."""

    data: dict[int, bytes]
    """The answers, by the site whose connection they came over."""
    failed: dict[int, str] = field(default_factory=dict)
    """Why some sites gave none, where that is known."""


class Carrier(Protocol):
    """Something that carries orders to sites and brings their answers."""

    def sites(self) -> Collection[int]:
        """Who is there."""
        ...

    def ask(self, orders: Mapping[int, Order]) -> Answers:
        """The answers that came before a deadline."""
        ...


class InProcess:
    """The reference: sites are objects, and what is carried is bytes all the same.

    Args:
        sites: The sites, by number.
        lost: Whose answers get lost in a round.
    """

    def __init__(
        self, sites: Mapping[int, Site], lost: Callable[[int], Collection[int]] = lambda round_number: ()
    ) -> None:
        self._sites, self._lost = sites, lost

    def sites(self) -> Collection[int]:
        """All of them."""
        return self._sites.keys()

    def ask(self, orders: Mapping[int, Order]) -> Answers:
        """The answers of all sites that have one."""
        found = Answers({})
        for number, order in orders.items():
            try:
                answer = self._sites[number].answer(order)
            except RefusedError as error:
                found.failed[number] = str(error)
                continue
            header = wire.decode(order.data)[1]
            if header.kind == "work" and header.exchange >= 0 and number in self._lost(header.round):
                found.failed[number] = "its answer was lost"
            else:
                found.data[number] = answer
        return found


def enrol(hub: Hub, carrier: Carrier) -> dict[int, str]:
    """Take in all sites that are there and not enrolled yet, and return why others are not."""
    new = [site for site in carrier.sites() if site not in hub.enrolled]
    answers = carrier.ask({site: hub.invitation() for site in new})
    refused = {site: hub.enrol(site, data) for site, data in answers.data.items()}
    return answers.failed | {site: reason for site, reason in refused.items() if reason is not None}


def federate(hub: Hub, carrier: Carrier, told: Callable[[Report], None] = lambda report: None) -> None:
    """Carry a federation to the end of its last round, from wherever it stands.

    Args:
        hub: The server.
        carrier: What brings its orders to the sites.
        told: Called with how every exchange went.
    """
    while not hub.done:
        enrol(hub, carrier)
        answers = carrier.ask(hub.orders())
        told(hub.take(answers.data))


def gossip(peers: Mapping[int, Peer], told: Callable[[int, Heard], None] = lambda node, heard: None) -> None:
    """Carry nodes that are objects to the end of their last round; what they exchange is bytes all the same.

    Args:
        peers: The nodes, by number.
        told: Called with a node and how an exchange went there.
    """
    for _ in range(2):  # how many of its neighbours have data, a node knows once it has met them
        for peer in peers.values():
            for node in peer.neighbours:
                peer.meet(node, peers[node].own.samples, peers[node].degree)
    while not all(peer.done for peer in peers.values()):
        said = {number: peer.speak() for number, peer in peers.items()}
        for number, peer in peers.items():
            to_it = {sender: words[number] for sender, words in said.items() if number in words}
            told(number, peer.hear(to_it))
