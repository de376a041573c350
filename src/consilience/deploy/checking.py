"""Whether a federation that exchanges bytes ends with what a simulation ends with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from consilience import tree
from consilience.config import Config
from consilience.deploy.agreeing import Agreement, agreements
from consilience.deploy.carrying import InProcess, federate, gossip
from consilience.deploy.hub import Hub
from consilience.deploy.peer import Peer
from consilience.deploy.site import Site
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.engine.rounds.simulation import Simulation
from consilience.exchange.cohort import failed_clients
from consilience.exchange.traffic import Traffic
from consilience.types import State


@dataclass(frozen=True)
class Checked:
    """How a federation compares with its simulation."""

    label: str
    gap: float
    """The largest difference of any number of the state of a hub; NaN where the states have other forms."""
    bytes_simulated: int
    bytes_carried: int
    refused: tuple[str, ...]
    """What was refused on the way, which nothing should be."""

    @property
    def equal(self) -> bool:
        """Whether weights are equal to the bit, and bytes are as counted."""
        return self.gap == 0 and self.bytes_simulated == self.bytes_carried and not self.refused

    def line(self) -> str:
        """What there is to say, in one line."""
        weights = "weights equal to the bit" if self.gap == 0 else f"weights differ by up to {self.gap:.2g}"
        count = f"{self.bytes_carried:,} bytes carried"
        if self.bytes_carried != self.bytes_simulated:
            count += f", {self.bytes_simulated:,} simulated"
        refused = f", refused: {'; '.join(self.refused[:3])}" if self.refused else ""
        return f"{self.label}: {weights}, {count}{refused}"


def check(config: Config) -> list[Checked]:
    """How every federation of a configuration compares with its simulation, one after the other."""
    return [check_one(one) for one in agreements(config)]


def check_one(agreement: Agreement) -> Checked:
    """How a federation whose members are objects in this process compares with its simulation."""
    with repeatable(torch.device("cpu"), "fp32"):
        simulation = simulate(agreement.scene, agreement.arm.variants)
        counted = Traffic()
        for _ in range(agreement.terms.rounds):
            (record,) = simulation.step(evaluate=False)
            counted.add(Traffic(Counter(record.bytes_up), Counter(record.bytes_down)))
        hubs, carried, refused = (_peers if agreement.terms.graph else _sites)(agreement)
    label = f"{agreement.arm.labels[0]} seed {agreement.terms.seed}"
    gap = max(_gap(expected, found) for expected, found in zip(_hubs(simulation), hubs, strict=True))
    return Checked(label, gap, total(counted), total(carried), tuple(refused))


def total(traffic: Traffic) -> int:
    """All bytes of a count, both ways."""
    return sum(traffic.up.values()) + sum(traffic.down.values())


def _sites(agreement: Agreement) -> tuple[list[State], Traffic, list[str]]:
    """The hub after all rounds, its traffic, and what it refused."""
    terms, refused = agreement.terms, list[str]()
    everybody = range(terms.population)
    sites = {number: Site(terms, number, agreement.dealt(number)) for number in everybody}
    hub = Hub(terms, agreement.initial(), quorum=1)

    def lost(round_number: int) -> frozenset[int]:
        rate = agreement.scene.failure_rate
        return failed_clients(terms.seed, round_number, torch.arange(terms.population).numpy(), rate)

    federate(
        hub,
        InProcess(sites, lost),
        lambda report: refused.extend(f"{site}: {why}" for site, why in report.refused.items()),
    )
    return [hub.state], hub.traffic, refused


def _peers(agreement: Agreement) -> tuple[list[State], Traffic, list[str]]:
    """The nodes' states after all rounds, their traffic, and what they refused."""
    terms, refused = agreement.terms, list[str]()
    peers = {
        number: Peer(terms, number, agreement.dealt(number), agreement.initial(number))
        for number in range(terms.population)
    }
    gossip(peers, lambda node, one: refused.extend(f"{node}: {why}" for why in one.refused.values()))
    whole = Traffic()
    for peer in peers.values():
        whole.add(peer.traffic)
    return [peer.hub for peer in peers.values()], whole, refused


def _hubs(simulation: Simulation) -> list[State]:
    """The states of a simulation's only server, or of its nodes."""
    only = tree.index(simulation.hub, 0)
    if not simulation.world.graph:
        return [only]
    return [tree.index(only, node) for node in range(simulation.world.population)]


def _gap(expected: State, found: State) -> float:
    """The largest difference between two states."""
    left, right = tree.flatten(expected), tree.flatten(found)
    if {n: tree.kind_of(v) for n, v in left.items()} != {n: tree.kind_of(v) for n, v in right.items()}:
        return float("nan")
    gaps = [float((left[n].double() - right[n].double()).abs().max()) for n in left if left[n].numel()]
    return max(gaps, default=0.0)
