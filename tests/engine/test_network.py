"""Graphs that change, nodes that leave, return and sleep, links that lose messages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree, wire
from consilience.algorithms import METHODS
from consilience.algorithms.dechw import DecHW, DecHWStar
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.local import Local
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.network import Network
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.randomness import Purpose, generator
from consilience.learning.solvers import SGD
from consilience.transforms.compressed import Compressed

NODES = 6


def scene(network: Network, topology=None, **changes) -> Scene:
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(60, 4)), random.integers(0, 3, 60)
    rows = np.arange(NODES * 8).reshape(NODES, 8)
    made = Scene(
        dataset=Dataset.from_arrays("made", inputs, targets, inputs[:10], targets[:10], classes=3),
        build=lambda: torch.nn.Linear(4, 3),
        partitions={seed: Partition(tuple(rows), (rows[0, :0],) * NODES, {}, 0) for seed in (0, 1)},
        topology=topology or Ring(),
        work=LocalWork(1, None, 4),
        participation=NODES,
        network=network,
        init="different",
        normalize="none",
        dtype=torch.float64,
    )
    return replace(made, **changes)


def started(network: Network, topology=None, method=None, **changes):
    return simulate(scene(network, topology, **changes), [(method or FedAvg(), SGD(0.1))])


def weights(simulation, replica: int = 0):
    return tree.index(simulation.hub, replica)["params"]["weight"]


ROUGH = Network(redraw_every=2, loss=0.3, leave=0.3, come_back=0.4, wake=(0.4, 0.9), staleness=3)
KINDS = {
    "redrawn": Network(redraw_every=2),
    "lossy": Network(loss=0.4),
    "churn": Network(leave=0.3),
    "fresh": Network(leave=0.4, fresh=True),
    "gossip": Network(wake=(0.3, 0.9)),
    "all": ROUGH,
}


@pytest.mark.parametrize("method", [FedAvg(), DecHW()], ids=["fedavg", "dechw"])
@pytest.mark.parametrize("network", KINDS.values(), ids=KINDS)
def test_a_run_repeats_and_resumes_to_the_same_bits_in_both_executors(network, method):
    runs = []
    for executor in ("batched", "batched", "sequential"):
        simulation = started(network, ErdosRenyi(p=0.6), method, executor=executor)
        for _ in range(6):
            simulation.step(evaluate=False)
        runs.append(simulation.snapshot())
    assert_close(runs[0], runs[1], rtol=0, atol=0)
    assert_close(runs[0], runs[2], rtol=1e-9, atol=1e-12)
    first, second = (started(network, ErdosRenyi(p=0.6), method) for _ in range(2))
    for _ in range(3):
        first.step(evaluate=False)
    # Through the file of a checkpoint, in which groups without tensors get lost.
    saved, _ = wire.decode_tensors(wire.encode_tensors(tree.flatten(first.snapshot()), {}))
    second.restore(tree.unflatten(saved))
    for _ in range(3):
        second.step(evaluate=False)
    assert_close(second.snapshot(), runs[0], rtol=0, atol=0)


def test_by_default_nothing_is_different():
    plain, named = started(Network()), started(Network(come_back=0.9))
    for simulation in (plain, named):
        simulation.step()
    assert_close(plain.hub, named.hub, rtol=0, atol=0)


def test_a_graph_is_drawn_anew_after_some_rounds_and_differs_between_seeds():
    world = started(Network(redraw_every=3), ErdosRenyi(p=0.5)).world
    graphs = [[world.adjacency(replica, number).tobytes() for number in range(9)] for replica in (0, 1)]
    for own in graphs:
        assert [own[i] == own[i + 1] for i in range(8)] == [True, True, False] * 2 + [True, True]
    assert graphs[0][0] != graphs[1][0]
    assert not {*graphs[0][3:]} & {*graphs[1][3:]}


def test_a_lost_message_is_not_heard_but_was_sent():
    calm, lossy = started(Network(), Complete()), started(Network(loss=0.5), Complete())
    one, other = calm.step(evaluate=False)[0], lossy.step(evaluate=False)[0]
    assert one.bytes_up == one.bytes_down == other.bytes_up
    assert one.messages == other.messages == NODES * (NODES - 1)
    share = sum(other.bytes_down.values()) / sum(other.bytes_up.values())
    assert 0.2 < share < 0.8
    assert not torch.allclose(weights(lossy), weights(calm))
    # Who heard nobody keeps what it trained, i.e. a link never changes what is said.
    silent = started(Network(loss=1 - 1e-12), Complete())
    silent.step(evaluate=False)
    alone = started(Network(), Complete(), Local())
    alone.step(evaluate=False)
    trained = alone.models([(0, node) for node in range(NODES)])["params"]["weight"]
    assert_close(weights(silent), trained, rtol=0, atol=1e-15)


def test_nodes_leave_and_come_back_with_their_old_model():
    network = Network(leave=0.4, come_back=0.5)
    simulation = started(network)
    there = [network.present(0, NODES, number) for number in range(8)]
    assert there[0].all()
    assert not all(row.all() for row in there)
    assert any(network.returned(0, NODES, number).any() for number in range(8))
    for number in range(8):
        before = weights(simulation).clone()
        simulation.step(evaluate=False)
        same = [torch.equal(old, new) for old, new in zip(before, weights(simulation), strict=True)]
        assert same == (~there[number]).tolist()


def presence(network: Network, seed: int, rounds: int) -> list[list[bool]]:
    """Who is there, from the first round on, as the chain of chances says."""
    there = [[True] * NODES]
    for number in range(1, rounds):
        draws = generator(seed, Purpose.CHURN, number).random(NODES)
        pairs = zip(there[-1], draws, strict=True)
        there.append([bool(d >= network.leave if here else d < network.come_back) for here, d in pairs])
    return there


@pytest.mark.parametrize("come_back", [0.3, 0.7])
def test_who_is_there_does_not_depend_on_what_was_asked_before(come_back):
    network = Network(leave=0.3, come_back=come_back)
    expected = {seed: presence(network, seed, 1501) for seed in (5, 6)}

    def ask(seed, number):
        return network.present(seed, NODES, number).tolist()

    orders = [[1500], [299], [*range(300)], [*range(299, -1, -1)], [7, 7, 250, 7, 3]]
    for seed, order in itertools.product(expected, orders):
        assert [ask(seed, number) for number in order] == [expected[seed][number] for number in order]
    for other in range(5000):  # more than are remembered
        network.present(100 + other, NODES, 1)
    assert [ask(5, number) for number in (299, 0, 1, 128)] == [expected[5][n] for n in (299, 0, 1, 128)]


def test_nobody_can_change_who_was_there():
    network = Network(leave=0.3)
    before = network.present(0, NODES, 9).copy()
    with pytest.raises(ValueError, match="read-only"):
        network.present(0, NODES, 9)[:] = False
    assert np.array_equal(network.present(0, NODES, 9), before)


def test_a_node_that_comes_back_fresh_starts_from_its_initial_model():
    network = Network(leave=0.5, come_back=0.5, fresh=True)
    fresh, old = started(network), started(replace(network, fresh=False))
    initial = weights(fresh).clone()
    number = next(n for n in range(20) if network.returned(0, NODES, n).any())
    node = int(np.flatnonzero(network.returned(0, NODES, number))[0])
    for simulation in (fresh, old):
        for _ in range(number):
            simulation.step(evaluate=False)
    assert_close(fresh.hub, old.hub, rtol=0, atol=0)
    assert not torch.allclose(weights(fresh)[node], initial[node])
    fresh._welcome_back()
    assert torch.equal(weights(fresh)[node], initial[node])
    others = [n for n in range(NODES) if not network.returned(0, NODES, number)[n]]
    assert torch.equal(weights(fresh)[others], weights(old)[others])


def test_neighbours_of_a_node_that_left_go_on_without_it():
    network = Network(leave=0.4)
    simulation = started(network, Complete())
    number = next(n for n in range(20) if 1 < network.present(0, NODES, n).sum() < NODES)
    for _ in range(number):
        simulation.step(evaluate=False)
    simulation.step(evaluate=False)
    there = np.flatnonzero(network.present(0, NODES, number))
    # On a complete graph those who are there all end with the same mean.
    present = weights(simulation)[there]
    assert_close(present, present[:1].expand_as(present), rtol=0, atol=1e-12)
    away = np.setdiff1d(np.arange(NODES), there)
    assert not torch.allclose(weights(simulation)[away[0]], present[0])


def test_sleeping_nodes_do_nothing_and_hear_when_they_wake():
    network = Network(wake=(0.5, 0.5))
    simulation = started(network, Complete())
    for number in range(6):
        before = weights(simulation).clone()
        simulation.step(evaluate=False)
        same = [torch.equal(old, new) for old, new in zip(before, weights(simulation), strict=True)]
        assert same == (~network.awake(0, NODES, number)).tolist()
    mailbox = simulation.mailbox
    last = [max(n for n in range(6) if network.awake(0, NODES, n)[node]) for node in range(NODES)]
    assert mailbox.sent[0].tolist() == last
    # Whoever was awake in the last round has the mean of everybody's newest message.
    awake = np.flatnonzero(network.awake(0, NODES, 5))
    newest = mailbox.messages["params"]["weight"][0].mean(0)
    assert_close(weights(simulation)[awake], newest.expand(len(awake), 3, 4), rtol=0, atol=1e-12)


def test_messages_that_are_too_old_are_not_used():
    network = Network(wake=(0.3, 0.3), staleness=0)
    simulation = started(network, Complete())
    for number in range(5):
        simulation.step(evaluate=False)
        awake = np.flatnonzero(network.awake(0, NODES, number))
        if len(awake):
            mean = simulation.mailbox.messages["params"]["weight"][0][awake].mean(0)
            assert_close(weights(simulation)[awake], mean.expand(len(awake), 3, 4), rtol=0, atol=1e-12)


def test_all_awake_is_the_synchronous_round():
    almost = started(Network(wake=(1 - 1e-15, 1.0)))
    calm = started(Network())
    for _ in range(3):
        almost.step(evaluate=False)
        calm.step(evaluate=False)
    assert_close(almost.hub, calm.hub, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("network", "topology", "message"),
    [
        (Network(loss=0.1), Star(), "network is about a graph of peers"),
        (Network(leave=0.1), Star(), "participation and failure_rate"),
    ],
)
def test_a_star_has_no_network(network, topology, message):
    with pytest.raises(UserError, match=message):
        started(network, topology)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wake": (0.0, 0.5)}, "above 0"),
        ({"wake": (0.9, 0.5)}, "the smaller first"),
        ({"staleness": 2}, "set wake below 1"),
        ({"fresh": True}, "set leave above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        Network(**options)


@pytest.mark.parametrize("topology", [Ring(), Complete()])
def test_graphs_that_are_always_the_same_are_not_drawn_anew(topology):
    with pytest.raises(UserError, match=f"redraw_every is for random graphs; a {topology.name} is always"):
        started(Network(redraw_every=2), topology)


@pytest.mark.parametrize("method", [Compressed("int8")(FedAvg()), DecHWStar(until=2, mode="freeze")])
def test_what_neighbours_keep_needs_neighbours_that_stay(method):
    with pytest.raises(UserError, match="neighbours stay the same"):
        started(Network(redraw_every=2), ErdosRenyi(p=0.6), method)
    started(Network(), ErdosRenyi(p=0.6), method)


DAMAGING = {
    "awake": Network(),
    "asleep": Network(wake=(0.9, 0.9)),
    "forgetting": Network(wake=(0.5, 0.9), staleness=1),
    "losing": Network(wake=(0.9, 0.9), loss=0.3),
    "leaving": Network(wake=(0.9, 0.9), leave=0.3, fresh=True),
    "losing, awake": Network(loss=0.3, leave=0.3),
}


@pytest.mark.parametrize("network", DAMAGING)
@pytest.mark.parametrize("method", ["fedavg", "dechw", "dechw*", "cfa-ge"])
def test_a_round_in_which_every_upload_is_rejected_leaves_nodes_as_they_were(method, network):
    """Nothing is left of such a round but empty lists, whose numbers must be whole ones all the same."""
    if method == "cfa-ge" and DAMAGING[network].asynchronous:
        pytest.skip("its nodes must wake together")
    topology = ErdosRenyi(p=0.9) if "losing" in network else Ring()
    random = np.random.default_rng(0)
    inputs, targets = 1e6 * random.normal(size=(60, 4)), random.integers(0, 3, 60)  # one step goes too far
    huge = Dataset.from_arrays("huge", inputs, targets, inputs[:10], targets[:10], classes=3)
    changed = scene(DAMAGING[network], topology, dataset=huge, init="common")
    simulation = simulate(changed, [(METHODS[method](), SGD(1e308))])
    before = simulation.hub["params"]["weight"].clone()
    for _ in range(3):
        assert all(record.diverged for record in simulation.step(evaluate=False))
    assert torch.equal(simulation.hub["params"]["weight"], before)
