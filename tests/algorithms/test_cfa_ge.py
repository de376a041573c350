"""CFA-GE: section 8.2 of the algorithm reference, and that replies reach the right node."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.cfa import CFA
from consilience.algorithms.cfa_ge import CFAGE
from consilience.algorithms.fedavg import FedAvg
from consilience.engine.build import simulate
from consilience.engine.network import Network
from consilience.errors import UserError
from consilience.methods import read_method
from consilience.solver import SGD
from consilience.testing import PROPERTIES, check_property, prepare
from consilience.topology import Complete, Line, Ring, Star
from consilience.transforms.clipped import Clipped
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised
from consilience.transforms.until import Until

STILL = SGD(0.0)
"""Local training that changes nothing."""
WHOLE = 100
"""A batch that holds all data of any client."""


def gradient(scene, params, client):
    """A client's gradient at some parameters, on all of its data."""
    rows = torch.from_numpy(scene.partitions[0].shards[client])
    module = scene.build().to(scene.dtype)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    output = functional_call(module, leaves, (scene.dataset.inputs[rows].to(scene.dtype),))
    loss = F.cross_entropy(output, scene.dataset.targets[rows])
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


# The reference's own property.
@pytest.mark.parametrize("point", ["sent", "merged"])
@pytest.mark.parametrize("mode", ["joint", "sequential"])
def test_without_a_step_it_is_cfa_bit_for_bit(scene, play, mode, point):
    where = replace(scene(dtype=torch.float32), topology=Ring(), init="different")
    found, expected = play(where, CFAGE(0.7, mode, mu=0.0, point=point)), play(where, CFA(0.7, mode))
    assert_close(found.hub, expected.hub, rtol=0, atol=0)


@pytest.mark.parametrize("point", ["sent", "merged"])
@pytest.mark.parametrize("topology", [Line(), Complete()])
def test_a_node_follows_its_neighbours_gradients_at_its_own_model(scene, play, topology, point):
    where = replace(scene(batch_size=WHOLE), topology=topology, init="different")
    method = CFAGE(epsilon=0.5, mu=0.3, rho=0.9, point=point)
    simulation = play(where, method, 0, STILL)
    links = simulation.world.replicas[0].adjacency
    nodes = range(len(links))
    smooth = {
        pair: tree.zeros_like(tree.index(simulation.hub, 0)["params"])
        for pair in itertools.product(nodes, nodes)
    }
    smooth = {pair: {n: v[0] for n, v in params.items()} for pair, params in smooth.items()}
    for _ in range(3):
        sent = tree.index(simulation.hub, 0)["params"]
        consensus = play(where, CFA(0.5), 0, STILL)
        consensus.hub = simulation.hub
        consensus.step(evaluate=False)
        expected = {name: value.clone() for name, value in tree.index(consensus.hub, 0)["params"].items()}
        points = sent if point == "sent" else {name: value.clone() for name, value in expected.items()}
        simulation.step(evaluate=False)
        for node, host in itertools.product(nodes, nodes):
            if links[node, host]:
                fresh = gradient(where, {n: v[host] for n, v in points.items()}, node)
                smooth[node, host] = tree.add(tree.scale(0.9, fresh), tree.scale(1 - 0.9, smooth[node, host]))
                for name, value in expected.items():
                    value[host] -= 0.3 * smooth[node, host][name]
        assert_close(tree.index(simulation.hub, 0)["params"], expected)


def test_gradients_are_of_one_batch(scene, play):
    """Batches of one row change the answers of every client but the one that has no more rows."""
    wheres = [replace(scene(batch_size=size), topology=Complete(), init="different") for size in (1, WHOLE)]
    small, whole = (play(where, CFAGE(), 1, STILL).links for where in wheres)
    for client in range(5):
        pair = [5 * client + (client + 1) % 5]
        answers = [links.load(pair)["gradient"]["0.weight"] for links in (small, whole)]
        assert torch.allclose(*answers) == (client == 3)


def test_equal_nodes_with_equal_models_move_as_one(scene, play):
    where = replace(scene(sizes=(6, 6, 6), batch_size=WHOLE), topology=Complete(), init="common")
    same = where.partitions[0].shards[0]
    where.partitions[0] = replace(where.partitions[0], shards=(same, same, same))
    params = play(where, CFAGE(mu=0.1), 3).hub["params"]
    for value in params.values():
        assert_close(value[0], value[0, :1].expand_as(value[0]))


def test_bytes_are_two_models_a_neighbour(scene, play):
    where = replace(scene(), topology=Line())
    one, two, three = (play(where, method, 0).step()[0] for method in (CFA(), CFAGE(), CFAGE(point="merged")))
    assert two.bytes_up["params"] == two.bytes_up["gradient"] == one.bytes_up["params"]
    assert three.bytes_up["merged"] == one.bytes_up["params"]
    assert two.bytes_up == two.bytes_down
    assert (one.messages, two.messages, three.messages) == (8, 16, 24)


def test_who_was_not_heard_gets_no_answer(scene, play):
    """A node whose messages are lost neither answers nor is answered."""
    where = replace(scene(), topology=Complete(), init="different")
    for rate in (0.2, 0.3, 0.4, 0.5):
        simulation = play(replace(where, failure_rate=rate), CFAGE(mu=0.1), 0)
        record = simulation.step(evaluate=False)[0]
        lost = len(record.dropped)
        if lost:
            break
    assert 0 < lost < 5
    assert record.messages == 2 * 4 * (5 - lost) - (5 - lost) * lost


def test_lost_links_lose_answers(scene, play):
    where = replace(scene(), topology=Complete(), network=Network(loss=0.5))
    record = play(where, CFAGE(), 0).step(evaluate=False)[0]
    assert record.bytes_down["params"] < record.bytes_up["params"] == 20 * 8 * 83
    # Only what was heard is answered, and half of the answers get lost too.
    assert record.bytes_down["gradient"] < record.bytes_up["gradient"] == record.bytes_down["params"]


def test_scores_are_those_of_trained_models(scene, play):
    where = replace(scene(), topology=Ring(), init="different")
    records = [play(where, method, 0).step()[0] for method in (CFA(), CFAGE(point="merged"))]
    trained = [{k: v for k, v in r.scores.items() if k.startswith("trained_")} for r in records]
    assert trained[0] == trained[1] != {}
    assert records[0].nodes["contributors"] == records[1].nodes["contributors"]


def test_nodes_that_come_back_fresh_remember_no_neighbour(scene, play):
    network = Network(leave=0.3, fresh=True)
    simulation = play(replace(scene(), topology=Complete(), network=network), CFAGE(), 0)
    for number in range(20):
        if network.returned(0, 5, number).any():
            break
        simulation.step(evaluate=False)
    node = int(network.returned(0, 5, number).argmax())
    rows = [5 * node + other for other in range(5)]
    assert simulation.links.load(rows)["gradient"]["0.bias"].abs().sum() > 0
    simulation._welcome_back()
    assert simulation.links.load(rows)["gradient"]["0.bias"].abs().sum() == 0


TRANSFORMS = [Noised(0.01), Clipped(0.5), Compressed("int8"), Compressed(one_in=4)]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    "name", ["messages_survive_the_wire", "batched_equals_sequential", "snapshots_continue"]
)
def test_transforms_act_on_replies_too(transform, name):
    one = next(one for one in PROPERTIES if one.__name__ == name)
    check_property(one, prepare(transform(CFAGE(mu=0.1))))


def test_every_reply_has_noise_of_its_own(scene, play):
    where = replace(scene(batch_size=WHOLE), topology=Complete(), init="common")
    quiet, noisy = (play(where, method, 1, STILL) for method in (CFAGE(mu=1.0), Noised(0.1)(CFAGE(mu=1.0))))
    # The sums of four noisy answers differ from node to node, although all models are the same.
    gaps = noisy.hub["params"]["0.bias"][0] - quiet.hub["params"]["0.bias"][0]
    assert len({tuple(gap.tolist()) for gap in gaps}) == 5


def test_it_can_follow_another_method(scene, play):
    where = replace(scene(), topology=Ring(), init="different")
    until = play(where, Until(FedAvg(), 2, CFAGE(mu=0.1)), 3)
    by_hand = play(where, CFAGE(mu=0.1), 0)
    by_hand.hub = play(where, FedAvg(), 2).hub
    by_hand.round = 2
    by_hand.step(evaluate=False)
    assert_close(tree.index(until.hub, 0)["params"], tree.index(by_hand.hub, 0)["params"])


def test_options_are_read_from_a_configuration():
    swept = read_method({"name": "cfa-ge", "mu": [0.0015, 0.02], "point": "merged"}).sweep.variants
    assert swept == (CFAGE(point="merged"), CFAGE(mu=0.02, point="merged"))


def test_a_star_is_refused(scene, play):
    with pytest.raises(UserError, match="cfa-ge: consensus is defined on a graph of peers: set topology"):
        play(replace(scene(), topology=Star()), CFAGE())


def test_nodes_that_do_not_wake_together_are_refused(scene):
    where = replace(scene(), topology=Ring(), network=Network(wake=(0.5, 0.5)))
    with pytest.raises(UserError, match="several exchanges a round, so its nodes must wake together"):
        simulate(where, [(CFAGE(), SGD())])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rho": 1.5}, "rho must be from 0 to 1, not 1.5"),
        ({"mu": -1.0}, "mu must be"),
        ({"epsilon": 2.0}, "epsilon must be from 0 to 1"),
    ],
)
def test_bad_numbers_are_refused(options, line):
    with pytest.raises(UserError, match=line):
        CFAGE(**options)
