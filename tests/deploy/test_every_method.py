"""Members that exchange nothing but bytes end where the simulation ends, with every method."""

from __future__ import annotations

import pytest
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Algorithm
from consilience.algorithms import METHODS
from consilience.algorithms.fedcurv import FedCurv
from consilience.deploy.carrying import InProcess, gossip
from consilience.deploy.carrying import federate as carry
from consilience.graphs import Ring, Star
from consilience.testing import prepare
from consilience.testing.federation import SIZES
from consilience.transforms import TRANSFORMS
from consilience.transforms.compressed import Compressed

SMALL = {"desa": {"ipc": 2, "iterations": 2, "width": 4, "depth": 2}}
METHODS_HERE: dict[str, Algorithm] = {name: method(**SMALL.get(name, {})) for name, method in METHODS.items()}
TRANSFORMED: dict[str, Algorithm] = {
    f"{name} hwa": transform()(METHODS["hwa"]()) for name, transform in TRANSFORMS.items()
}
VARIANTS: dict[str, Algorithm] = {
    "sparse": FedCurv(one_in=3),
    "int8": Compressed("int8")(METHODS["fedga"]()),
    **TRANSFORMED,
}


def fits(algorithm: Algorithm, topology: type) -> bool:
    return any(isinstance(one, topology) for one in prepare(algorithm).topologies)


EVERY = METHODS_HERE | VARIANTS
AT_SERVERS = {name: one for name, one in EVERY.items() if fits(one, Star)}
AMONG_PEERS = {name: one for name, one in EVERY.items() if fits(one, Ring)}


def assert_same(found, expected, algorithm: Algorithm, *, exact: bool) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert tree.flatten(left).keys() == tree.flatten(right).keys()
        # Learned Hessians are matrices that are multiplied, which rounds by where in memory they lie; and a
        # node's sums have fewer terms than the simulation's, whose others are 0.
        near = 1e-9 if algorithm.linear_only() or not exact else 0.0
        assert_close(left, right, rtol=near, atol=near)


def counted(simulation_records) -> tuple[int, int]:
    up = sum(sum(record.bytes_up.values()) for record in simulation_records)
    return up, sum(sum(record.bytes_down.values()) for record in simulation_records)


@pytest.mark.parametrize("name", AT_SERVERS)
def test_a_hub_and_its_sites_are_the_simulation_bit_for_bit(name, federate):
    place = federate(AT_SERVERS[name])
    hub, reports = place.hub(), []
    carry(hub, InProcess(place.sites()), reports.append)
    assert not any(report.refused for report in reports)
    records = [place.simulation.step(evaluate=False)[0] for _ in range(place.terms.rounds)]
    assert_same([hub.state], place.simulated(), place.terms.algorithm, exact=True)
    assert (sum(hub.traffic.up.values()), sum(hub.traffic.down.values())) == counted(records)


# Some nodes have no data: one hears nobody, one nobody but another, and of two that are neighbours each has
# a neighbour beside the other of which only one of them knows that it has nothing to say.
SOME_EMPTY = (0, 0, 4, 3, 0, 8)


@pytest.mark.parametrize("name", AMONG_PEERS)
@pytest.mark.parametrize("sizes", [SIZES, SOME_EMPTY], ids=["all have data", "some have none"])
def test_peers_are_the_simulation(name, sizes, federate):
    place = federate(AMONG_PEERS[name], Ring(), sizes=sizes)
    peers, refused = place.peers(), []
    gossip(peers, lambda node, heard: refused.append(heard.refused))
    assert not any(refused)
    records = [place.simulation.step(evaluate=False)[0] for _ in range(place.terms.rounds)]
    assert_same([peer.hub for peer in peers.values()], place.simulated(), place.terms.algorithm, exact=False)
    traffic = [(sum(p.traffic.up.values()), sum(p.traffic.down.values())) for p in peers.values()]
    assert tuple(map(sum, zip(*traffic, strict=True))) == counted(records)
