"""One exchange in which one member lies, at a hub and at a peer: is it refused, are the others unharmed?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from consilience import tree, wire
from consilience.algorithms import METHODS
from consilience.deploy.carrying import InProcess, enrol
from consilience.deploy.hub import Hub
from consilience.deploy.peer import Peer
from consilience.deploy.site import Site
from consilience.graphs import Ring
from consilience.types import State
from scorecard.federations import Federation, federation_of
from scorecard.finding import demand

LIAR = 1


def equal(left: State, right: State) -> bool:
    """Whether two states are equal to the bit."""
    one, other = tree.flatten(left), tree.flatten(right)
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@dataclass(frozen=True)
class Spot:
    """A receiver in an exchange in which the liar speaks."""

    name: str
    honest: bytes
    """What the liar would have said."""
    earlier: bytes
    """What it said in the exchange before."""
    away: State
    """What the receiver has after the exchange where the liar says nothing."""
    hear: Callable[[bytes | None], tuple[str | None, State]]
    """From what the liar says to why it is refused, and to what the receiver then has."""

    def check(self, lie: bytes) -> None:
        """Demand that a lie is refused with a reason, and that all is as if its sender were away."""
        reason, state = self.hear(lie)
        demand(reason is not None, f"{self.name}: it was not refused")
        demand(equal(state, self.away), f"{self.name}: refused, but the model is another one")


def begun(place: Federation) -> tuple[Hub, dict[int, Site]]:
    """A hub whose sites have enrolled, and these."""
    hub, sites = place.hub(), place.sites()
    assert enrol(hub, InProcess(sites)) == {}
    return hub, sites


@cache
def at_hub(method: str = "fedavg", before: int = 1) -> Spot:
    """A server after some rounds."""
    place = federation_of(METHODS[method](), rounds=2 * before + 1)
    hub, sites = begun(place)
    rounds = []
    for _ in range(before + 1):
        rounds.append(InProcess(sites).ask(hub.orders()).data)
        hub.take(rounds[-1])
    *past, now = rounds
    others = {site: data for site, data in now.items() if site != LIAR}

    def hear(lie: bytes | None) -> tuple[str | None, State]:
        fresh, _ = begun(place)
        for answers in past:
            fresh.take(answers)
        report = fresh.take(others if lie is None else {**others, LIAR: lie})
        assert report.done
        assert set(report.heard) >= set(others)
        return report.refused.get(LIAR), fresh.state

    return Spot("hub", now[LIAR], past[-1][LIAR], hear(None)[1], hear)


@cache
def at_peer(method: str = "fedavg", before: int = 1) -> Spot:
    """Node 0 of a ring after some rounds; the liar is its neighbour."""
    place = federation_of(METHODS[method](), Ring(), rounds=2 * before + 1)
    *past, now = [at[0] for at in spoken(place, before + 1)]
    others = {node: data for node, data in now.items() if node != LIAR}

    def hear(lie: bytes | None) -> tuple[str | None, State]:
        fresh = place.peer(0)
        introduce({0: fresh}, place)
        for arrived in past:
            fresh.speak()
            fresh.hear(arrived)
        fresh.speak()
        heard = fresh.hear(others if lie is None else {**others, LIAR: lie})
        assert set(heard.heard) >= set(others)
        return heard.refused.get(LIAR), fresh.hub

    return Spot("peer", now[LIAR], past[-1][LIAR], hear(None)[1], hear)


def introduce(peers: Mapping[int, Peer], place: Federation) -> None:
    """Let nodes know of their neighbours what they tell each other before the first round."""
    for _ in range(2):
        for peer in peers.values():
            for node in peer.neighbours:
                peer.meet(node, place.own(node).samples, 2)


def spoken(place: Federation, exchanges: int) -> Iterator[dict[int, dict[int, bytes]]]:
    """What everybody gets from whom in each of the first exchanges of an honest federation on a ring."""
    peers = place.peers()
    introduce(peers, place)
    for _ in range(exchanges):
        said = {number: peer.speak() for number, peer in peers.items()}
        found = {
            number: {sender: words[number] for sender, words in said.items() if number in words}
            for number in peers
        }
        for number, peer in peers.items():
            peer.hear(found[number])
        yield found


def rewritten(
    data: bytes, change: Callable[[State], State] = lambda message: message, **fields: int
) -> bytes:
    """A message with something else in it or in its header, and a digest that fits."""
    message, header = wire.decode(data)
    return wire.encode(change(message), dataclasses.replace(header, **fields), empty=True)
