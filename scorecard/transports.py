"""One seed, several transports, messages in any order: the same weights."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.config import load_config
from consilience.deploy import kept
from consilience.deploy.agreeing import Agreement, agree
from consilience.deploy.carrying import Answers, InProcess, gossip
from consilience.deploy.carrying import federate as carry
from consilience.deploy.flower.carrier import GridCarrier
from consilience.deploy.flower.writing import write_app
from consilience.deploy.hub import Hub
from consilience.deploy.peer import Peer
from consilience.deploy.serving import serve
from consilience.deploy.site import Order, Site
from consilience.deploy.zenoh.keeping import PEER_FILE
from consilience.types import State
from scorecard.finding import Finding, Tally, demand
from scorecard.flower_grid import Loop, as_a_server, ended, federation, places, simulated
from scorecard.flower_processes import BIN, opened, status, until
from scorecard.rings import keyed_rings
from scorecard.spots import equal

REAL = 20
"""From how many trials on Flower's real processes take part, which take a minute."""


def same_weights(trials: int, folder: Path) -> Finding:
    """Check 28: a federation in process, inside Flower and over Zenoh, with messages in random orders."""
    tally = Tally()
    config = federation("scaffold", clients=3, rounds=2, deploy={"secret": "seed", "quorum": "all"})
    agreement = agree(config)
    expected = simulated(agreement)
    for trial in range(trials):
        draw = random.Random(trial)
        with tally.trial("in process, shuffled"):
            hub = Hub(agreement.terms, agreement.initial(), quorum="all")
            carry(hub, Shuffled(_sites(agreement), draw))
            demand(equal(hub.state, expected), "other weights")
        with tally.trial("Flower's messages, shuffled"):
            demand(equal(_over_grid(config, folder / f"grid {trial}", draw), expected), "other weights")
    with tally.trial("over Zenoh"):
        _over_zenoh(folder / "zenoh")
    if trials >= REAL:
        with tally.trial("over Flower's processes"):
            demand(equal(_over_flower(agreement, folder / "flower"), expected), "other weights")
    return tally.finding()


def _sites(agreement: Agreement) -> dict[int, Site]:
    everybody = range(agreement.terms.population)
    return {number: Site(agreement.terms, number, agreement.dealt(number)) for number in everybody}


class Shuffled(InProcess):
    """Sites in this process whose answers come in any order."""

    def __init__(self, sites: Mapping[int, Site], draw: random.Random) -> None:
        super().__init__(sites)
        self._draw = draw

    def ask(self, orders: Mapping[int, Order]) -> Answers:
        """The answers of all sites, shuffled."""
        found = list(super().ask(_shuffled(orders, self._draw)).data.items())
        self._draw.shuffle(found)
        return Answers(dict(found))


def _shuffled(values: Mapping[int, Any], draw: random.Random) -> dict[int, Any]:
    found = list(values.items())
    draw.shuffle(found)
    return dict(found)


@dataclass
class ShuffledGrid(Loop):
    """A Grid that gives replies one at a time, in any order."""

    draw: random.Random = field(default_factory=random.Random)

    def pull_messages(self, message_ids: Any) -> list[Any]:
        """One reply, whichever."""
        ready = sorted(number for number in message_ids if number in self.replies)
        return [self.replies.pop(self.draw.choice(ready))] if ready else []


def _over_grid(config: Any, folder: Path, draw: random.Random) -> State:
    """What a hub ends with that speaks Flower's messages."""
    folder.mkdir()
    with as_a_server(), places(folder) as place:
        here = place(config)
        nodes = _shuffled(here.grid.nodes, draw)
        grid = ShuffledGrid(nodes, here.grid.file, draw=draw)
        here.hub.mkdir()
        carrier = GridCarrier(grid, len(nodes), deadline=60.0, file=here.folder / "nodes.json")
        serve(here.agreement, carrier, here.hub, wait=lambda: None)
        return ended(here.agreement, here.hub)


def _over_zenoh(folder: Path) -> None:
    """Demand that nodes in processes end with what peers in this process end with, to the bit."""
    folder.mkdir()
    with keyed_rings(folder) as (ring, _):
        one = ring(changes={"fedavg": "gradient-tracking", "rounds: 2": "rounds: 5"})
        one.start_all()
        agreement = agree(load_config(one.file, []))
        terms = agreement.terms
        peers = {n: Peer(terms, n, agreement.dealt(n), agreement.initial(n)) for n in range(4)}
        gossip(peers)
        for node, peer in peers.items():
            code = one.ended(node)
            demand(code == 0, f"node {node} ended with {code}")
            found = kept.load(one.out(node) / PEER_FILE, terms.run)
            demand(found is not None and equal(found[0]["hub"], peer.hub), f"node {node}: other weights")


def _over_flower(agreement: Agreement, folder: Path) -> State:
    """What a hub ends with on a real SuperLink, with SuperNodes and sites beside them."""
    folder.mkdir()
    with opened(folder) as place:
        write_app(agreement, folder / "app")
        for number in range(agreement.terms.population):
            words = ["app/federation/federation.yaml", "--client", str(number)]
            words += ["--socket", f"{number}.sock", "--out", f"site-{number}"]
            place.start(f"site{number}", str(BIN / "python"), "-m", "consilience", "site", *words)
        place.superlink()
        for number in range(agreement.terms.population):
            place.supernode(f"node{number}", f'number={number} socket="{folder}/{number}.sock"')
        place.flwr("run", "app", "trial", "--run-config", f'out="{folder}/hub"')
        ends = "the federation ends"
        until(lambda: status(folder / "hub").get("done"), ends, lambda: place.said("link"), 300.0)
        return ended(agreement, folder / "hub")
