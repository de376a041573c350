"""CFA-GE: section 8.2 of the algorithm reference, and that replies reach the right node."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.cfa import CFA
from consilience.algorithms.cfa_ge import CFAGE
from consilience.algorithms.fedavg import FedAvg
from consilience.config.entries import read_method
from consilience.engine.build import simulate
from consilience.engine.executors.sequential import Sequential
from consilience.engine.network import Network
from consilience.errors import UserError
from consilience.graphs.complete import Complete
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.testing import PROPERTIES, check_property, prepare
from consilience.testing.watching import Watch, Watched
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


def test_gradients_are_means_over_one_batch(scene, play):
    """With batches of one row, an answer is the gradient of one of the client's rows."""
    where = replace(scene(batch_size=1), topology=Complete(), init="different")
    simulation = play(where, CFAGE(rho=1.0), 0, STILL)
    models = tree.index(simulation.hub, 0)["params"]
    simulation.step(evaluate=False)
    for client in range(5):
        host = (client + 1) % 5
        (found,) = simulation.links.load([5 * client + host])["gradient"]["0.weight"]
        at = {name: value[host] for name, value in models.items()}
        whole = where.partitions[0].shards[client]
        rows = [replace(where.partitions[0], shards=(whole[i : i + 1],)) for i in range(len(whole))]
        single = [gradient(replace(where, partitions={0: row}), at, 0)["0.weight"] for row in rows]
        assert sum(torch.allclose(found, one) for one in single) == 1


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


@pytest.mark.parametrize("point", ["sent", "merged"])
def test_every_reply_has_noise_of_its_own(scene, play, point):
    """What a node gets beyond the answers that neighbours remember is the noise on them."""
    where = replace(scene(sizes=(7, 3, 10)), topology=Line(), init="different")
    noisy = play(where, Noised(0.1)(CFAGE(mu=1.0, point=point)), 1)
    consensus = play(where, Noised(0.1)(CFA()), 1).hub["params"]["0.weight"][0]
    ends = [0, 2]  # which the node between them answers
    answers = noisy.links.load([3 * 1 + end for end in ends])["gradient"]["0.weight"]
    noise = consensus[ends] - answers - noisy.hub["params"]["0.weight"][0, ends]
    assert noise.std() == pytest.approx(0.1, rel=0.3)
    assert not torch.allclose(noise[0], noise[1], atol=1e-3)


def test_the_merged_model_is_changed_like_any_other(scene, play):
    """Compression also acts on the model that `point: merged` shows; nothing is merged from it twice."""
    where = replace(scene(), topology=Ring(), init="different")
    packed = play(where, Compressed("int8")(CFAGE(point="merged")), 0).step()[0]
    groups = {f"{group}.{kind}" for group in ("params", "merged", "gradient") for kind in ("packed", "scale")}
    assert packed.bytes_up.keys() == groups | {"header"}
    exact = Compressed(one_in=1)(CFAGE(mu=0.1, point="merged"))
    found, expected = (play(where, method, 3) for method in (exact, CFAGE(mu=0.1, point="merged")))
    assert_close(found.hub["params"], expected.hub["params"])


def test_a_reply_that_is_not_finite_is_dropped_alone(scene, play):
    """Its sender is named and remembers what it did before; all others are heard."""
    where = replace(scene(batch_size=WHOLE), topology=Complete(), init="different")
    good, bad = (play(where, CFAGE(mu=0.1), 1) for _ in range(2))
    before = bad.links.load(range(25))["gradient"]["0.bias"]

    class Breaks(Watch):
        """The reply of client 2 to client 0 is not finite."""

        replies = 0

        def call(self, place, function, given):
            result = function(*given)
            if place.role == "local" and place.exchange == "exchange 1":
                self.replies += 1
                if self.replies == 2 * 4 + 1:
                    broken = tree.map_leaves(lambda value: value * torch.nan, result[0])
                    return broken, result[1]
            return result

    bad.algorithm = Watched(bad.algorithm, Breaks())
    bad.world = replace(bad.world, executor=Sequential(bad.world.pool))
    good.step(evaluate=False)
    record = bad.step(evaluate=False)[0]
    assert record.dropped == ("client 2 (upload rejected)",)
    after = bad.links.load(range(25))["gradient"]["0.bias"]
    assert torch.equal(after[2 * 5], before[2 * 5])
    usual = good.links.load(range(25))["gradient"]["0.bias"]
    others = [pair for pair in range(25) if pair != 2 * 5]
    assert_close(after[others], usual[others])
    missing = good.hub["params"]["0.bias"][0] - bad.hub["params"]["0.bias"][0]
    assert_close(missing[0], -0.1 * usual[2 * 5])
    assert_close(missing[1:], torch.zeros_like(missing[1:]))


def test_transforms_go_into_methods_that_follow_each_other(scene, play):
    """The two have exchanges of other kinds under the same number."""
    where = replace(scene(), topology=Ring(), init="different")
    for methods in ((CFAGE(point="merged"), CFAGE()), (CFAGE(), CFAGE(point="merged"))):
        play(where, Compressed("int8")(Until(methods[0], 1, methods[1])), 2)


def test_replies_that_answer_nothing_are_refused(scene):
    @dataclass(frozen=True)
    class Echo(CFA):
        def phases(self):
            first, *_ = super().phases()
            return (first._replace(replies=True),)

    with pytest.raises(UserError, match="replies must follow an exchange of a round"):
        simulate(replace(scene(), topology=Ring()), [(Echo(), SGD())])


def test_a_star_of_very_many_clients_has_no_links(scene):
    """A byte for every pair of clients would take 90 GB."""
    sizes = (1, *[0] * 300_000)
    simulation = simulate(scene(sizes=sizes), [(FedAvg(), SGD())])
    assert simulation.links.snapshot()["rows"]["number"].numel() == 0


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
