"""DeSA: section 8.4 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.algorithm import Algorithm
from consilience.algorithms.desa import DESA
from consilience.algorithms.desa_anchors import Matching, class_rows, embed, mismatch, random_network
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.local import Local
from consilience.data import load
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition, partition
from consilience.data.partitioners import ShardsTwoClasses
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.models import MLP
from consilience.objectives.synthetic_anchors import divergence, supervised_contrast
from consilience.testing import PROPERTIES, check_property, prepare

KEY = torch.tensor(1 << 40)
SMALL = DESA(ipc=2, iterations=2, width=4, depth=2, anchors_per_step=4)
ALONE = replace(SMALL, lambda_kd=0.0, lambda_reg=0.0, train_on_anchors=False)


@pytest.fixture
def graph(scene):
    """Makes a graph of ragged clients with six features and three classes."""

    def make(topology=Ring(), dtype=torch.float64, **changes):  # noqa: B008
        where = scene(dtype=dtype)
        where = replace(where, build=lambda: MLP((8,)).build((6,), 3), topology=topology)
        return replace(where, **changes)

    return make


def models(simulation):
    """The parameters of all nodes."""
    return simulation.models(simulation.evaluated())["params"]


def same(left, right):
    return all(torch.equal(value, right[name]) for name, value in left.items())


def norm(simulation, group, name):
    return simulation.hub[group][name].norm()


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_without_anchors_it_is_local_training(graph, play, dtype, executor):
    where = graph(dtype=dtype, executor=executor, init="different")
    alone = play(where, ALONE)
    assert same(models(play(where, Local())), models(alone))
    others = [replace(ALONE, lambda_kd=1.0), replace(ALONE, lambda_reg=1.0)]
    others += [replace(ALONE, train_on_anchors=True), replace(ALONE, lambda_ori=0.5)]
    for method in others:  # so each term does something
        assert not same(models(alone), models(play(where, method)))


# 2
@pytest.mark.parametrize("kl", ["batchmean", "released"])
def test_a_teacher_that_is_the_student_teaches_nothing(kl):
    logits, others = torch.randn(2, 5, 3, dtype=torch.float64)
    assert divergence(logits, logits, 20.0, kl) == 0
    assert divergence(logits, others, 20.0, kl) > 0


@pytest.mark.parametrize(("kl", "divisor"), [("batchmean", 1), ("released", 3)])
def test_divergence_is_torchs(kl, divisor):
    teacher, student = torch.randn(2, 5, 3, dtype=torch.float64)
    given, target = F.log_softmax(student / 20, -1), F.softmax(teacher / 20, -1)
    expected = F.kl_div(given, target, reduction="batchmean") / divisor
    assert_close(divergence(teacher, student, 20.0, kl), expected)


def test_nodes_that_start_alike_first_learn_nothing_from_each_other(graph, play):
    """All teachers are then the students themselves, and the hard part can be left out."""
    where = graph(work=LocalWork(None, 1, 100))
    taught = replace(ALONE, lambda_kd=1.0, distil_weight=1.0)
    found, expected = (models(play(where, method, rounds=1)) for method in (taught, ALONE))
    assert_close(found, expected, rtol=0, atol=1e-12)


# 3
@pytest.mark.parametrize("shape", [(6,), (2, 8, 8), (1, 4, 4), (3, 1, 5)])
def test_samples_match_themselves(shape):
    real, other = torch.randn(2, 5, *shape, dtype=torch.float64)
    network = random_network(KEY, 3, shape, width=4, depth=3, like=real)
    mean = embed(network, real).mean(0)
    assert mismatch(network, real, mean) == 0
    assert mismatch(network, other, mean) > 1e-4


# 4
def test_a_node_without_neighbours_is_not_taught(graph, play):
    """Only the last two nodes have an edge, and so a teacher."""

    class Pair(Ring):
        def adjacency(self, nodes, random):
            links = np.zeros((nodes, nodes), dtype=bool)
            links[-1, -2] = links[-2, -1] = True
            return links

    where = graph(topology=Pair(), init="different")
    taught, untaught = play(where, SMALL), play(where, replace(SMALL, lambda_kd=0.0))
    assert taught.hub["teacher"]["heard"][0].tolist() == [0, 0, 0, 1, 1]
    for name, value in models(taught).items():
        equal = [torch.equal(a, b) for a, b in zip(value, models(untaught)[name], strict=True)]
        assert equal == [True, True, True, False, False]


def test_the_teacher_is_the_mean_of_the_others(graph, play):
    where = graph(topology=Complete(), init="different")
    simulation = play(where, SMALL, rounds=1)
    images = simulation.hub["anchors"]["images"][0]
    # Everybody has the same, but for the rounding of different rows of one product.
    assert_close(images, images[:1].expand_as(images), rtol=0, atol=1e-12)
    logits = []
    for node in range(5):
        module = where.build().to(where.dtype)
        module.load_state_dict({name: value[node] for name, value in models(simulation).items()})
        logits.append(module(images[0]).detach())
    for node, found in enumerate(simulation.hub["teacher"]["logits"][0]):
        others = torch.stack([value for other, value in enumerate(logits) if other != node])
        assert_close(found, others.mean(0), rtol=0, atol=1e-12)


def test_anchors_come_closer(federation):
    """To each client's own samples, in networks that the matching never saw."""
    where = federation(sizes=(30, 12))
    inputs = where.pool.normalised(where.pool.inputs)
    start = torch.randn(3, 2, 2, 6, 6, dtype=torch.float64)

    def gaps(iterations):
        match = Matching(iterations, lr=2.0, momentum=0.5, width=16, depth=2)
        work = lambda client, down: {"own": {"anchors": match(client, start, class_rows(client, 3))}}  # noqa: E731
        made = where.run(where.sequential(), work).uploads["own"]["anchors"]
        found = torch.zeros(2)
        for (client, job), number in itertools.product(enumerate(where.cohort.jobs), range(100, 110)):
            network = random_network(KEY, number, (2, 6, 6), 16, 2, start)
            for c in range(3):
                samples = inputs[job.shard][where.pool.targets[job.shard] == c]
                found[client] += mismatch(network, made[client, c], embed(network, samples).mean(0))
        return found

    before, some, many = gaps(0), gaps(20), gaps(80)
    assert (some < 0.9 * before).all()
    assert (many < 0.9 * some).all()


def two_nodes(graph):
    """Nodes 0 and 1 have class 0 both, and class 1 or 2."""
    where = graph(topology=Complete())
    where.dataset.targets[:8] = torch.tensor([0, 0, 1, 1, 0, 0, 2, 2])
    rows = np.arange(8)
    return replace(
        where, partitions={0: Partition((rows[:4], rows[4:]), (rows[:0],) * 2, {}, 0)}, participation=2
    )


def test_images_of_absent_classes_stay_noise_and_can_be_left_out(graph, play):
    where = two_nodes(graph)

    def images(method):
        return play(where, method, rounds=1).hub["anchors"]["images"][0, 0].reshape(3, 2, 6)

    noise, everybody = images(replace(SMALL, iterations=0)), images(SMALL)
    holders = images(replace(SMALL, average="holders"))
    assert_close(everybody[0], holders[0], rtol=0, atol=0)  # a class that both have
    assert not torch.equal(everybody[1], holders[1])
    common = replace(SMALL, start="common")
    start = images(replace(common, iterations=0))
    moved, alone = images(common), images(replace(common, average="holders"))
    assert_close(2 * (moved - start)[1:], (alone - start)[1:], rtol=0, atol=1e-12)  # the other one stayed
    assert noise.std() < start.std()  # means of independent noise


def test_contrast_is_a_plain_double_loop():
    torch.manual_seed(1)
    features = torch.randn(7, 4, dtype=torch.float64)
    labels, weight = torch.tensor([0, 1, 0, 2, 1, 0, 0]), torch.tensor([1.0, 1, 1, 1, 1, 1, 0]).double()
    rows = range(6)  # the last does not count
    unit = [row / row.norm() for row in features]
    losses = []
    for i in rows:
        others = [j for j in rows if j != i]
        total = sum(torch.exp(unit[i] @ unit[j] / 0.07) for j in others)
        same = [j for j in others if labels[j] == labels[i]]
        logs = [unit[i] @ unit[j] / 0.07 - torch.log(total) for j in same]
        losses.append(-sum(logs) / len(same) if same else torch.tensor(0.0))
    assert_close(supervised_contrast(features, labels, weight, 0.07), sum(losses) / 6)


@pytest.mark.parametrize(("topology", "edges"), [(Ring(), 10), (Complete(), 20)])
def test_anchors_travel_once_and_then_logits(graph, topology, edges):
    simulation = simulate(graph(topology=topology, dtype=torch.float32), [(SMALL, SGD(0.1))])
    first, second = (simulation.step(evaluate=False)[0] for _ in range(2))
    images, logits = 3 * 2 * 6 * 4, 3 * 2 * 3 * 4
    header = first.bytes_up.pop("header"), second.bytes_up.pop("header")
    assert first.bytes_up == {"anchors": 20 * images, "logits": 2 * edges * logits}
    assert second.bytes_up == {"logits": edges * logits}
    assert second.bytes_down == {**second.bytes_up, "header": header[1]}


def test_all_anchors_or_some_of_them(graph, play):
    where = graph()
    every = models(play(where, replace(SMALL, anchors_per_step=None)))
    assert same(every, models(play(where, replace(SMALL, anchors_per_step=6))))
    assert not same(every, models(play(where, SMALL)))


@pytest.mark.parametrize(("size", "layers"), [(32, 3), (7, 2), (4, 2), (2, 1)])
def test_networks_halve_images_as_often_as_they_can(size, layers):
    like = torch.zeros(1, 2, size, size)
    network, again, *others = (
        random_network(key, number, (2, size, size), 4, 3, like)
        for key, number in ((KEY, 0), (KEY, 0), (KEY, 1), (KEY + 1, 0), (KEY + 1, 1))
    )
    assert len(network) == layers
    assert embed(network, like).shape[1] == 4 * (size >> layers) ** 2
    assert same(network, again)
    for other in others:
        overlap = np.intersect1d(network["0.weight"].numpy(), other["0.weight"].numpy())
        assert not len(overlap)  # not the same numbers in another order


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_clients_of_one_seed_match_in_the_same_networks_and_seeds_in_others(federation, executor):
    """Alone and beside the other seed."""
    where = federation()
    first = where.cohort.jobs[0]
    like = torch.zeros(1, 6, dtype=torch.float64)

    def work(client, down):
        return {"network": random_network(client.common_key, 0, (6,), 4, 1, like)}

    def sent(*seeds):
        jobs = tuple(first._replace(seed=seed, client=client) for seed in seeds for client in range(2))
        some = replace(where, cohort=replace(where.cohort, jobs=jobs))
        return some.run(getattr(some, executor)(), work).uploads["network"]["0.weight"]

    both = sent(0, 1)
    assert torch.equal(both[0], both[1])
    assert torch.equal(both[2], both[3])
    assert (both[0] != both[2]).all()
    assert torch.equal(sent(0), both[:2])


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_seeds_make_other_anchors_and_are_alone_what_they_are_in_company(graph, play, executor):
    """From common noise: what is left of chance is the seed's."""
    method = replace(SMALL, start="common")
    where = graph(executor=executor)
    parts = dict.fromkeys((0, 1), where.partitions[0])

    def anchors(partitions):
        return play(replace(where, partitions=partitions), method, rounds=1).hub["anchors"]["images"][:, 0]

    both = anchors(parts)
    assert (both[0] != both[1]).all()
    for seed in parts:
        assert_close(anchors({seed: parts[seed]})[0], both[seed], rtol=0, atol=1e-12)


REFUSED = [
    ({"topology": Star()}, SMALL, "desa: a node learns from the others' logits"),
    ({"build": lambda: nn.Linear(6, 3)}, SMALL, "desa: its contrast needs a model"),
]


@pytest.mark.parametrize(("changes", "method", "line"), REFUSED)
def test_refusals(graph, changes, method, line):
    with pytest.raises(UserError, match=line):
        simulate(graph(**changes), [(method, SGD(0.1))])


def test_without_a_contrast_no_features_are_needed(graph, play):
    play(graph(build=lambda: nn.Linear(6, 3)), replace(SMALL, lambda_reg=0.0), rounds=1)


NUMBERS = [("ipc", 0), ("iterations", -1), ("lambda_kd", -1.0), ("temperature", 0.0), ("distil_weight", 1.5)]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_numbers_are_checked(name, value):
    with pytest.raises(UserError, match=name):
        replace(SMALL, **{name: value})


@pytest.mark.parametrize(
    "name", ["batched_equals_sequential", "buffers_and_dropout_work", "snapshots_continue"]
)
def test_properties_with_draws_of_each_clients_own(name):
    """The conformance suite has the method without them: clients that change places draw other numbers."""
    (one,) = [one for one in PROPERTIES if one.__name__ == name]
    check_property(one, prepare(replace(SMALL, average="holders")))


@functools.cache
def accuracy(method: Algorithm, rounds: int) -> float:
    """The mean over ten nodes with two digits each, of small images; models start differently."""
    digits, some = load("mnist-sample"), slice(None, None, 4)
    inputs, test = (F.avg_pool2d(x / 127.5 - 1, 4) for x in (digits.inputs[some], digits.test_inputs))
    small = Dataset.from_arrays("small", inputs, digits.targets[some], test, digits.test_targets)
    where = Scene(
        dataset=small,
        build=lambda: MLP((64,)).build(small.shape, 10),
        partitions={0: partition(ShardsTwoClasses(), small.targets.numpy(), 10, 0)},
        topology=ErdosRenyi(p=0.5),
        work=LocalWork(1, None, 32),
        participation=10,
        normalize="none",
        init="different",
    )
    simulation = simulate(where, [(method, SGD(0.1))])
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return simulation.evaluate()[0]["test_accuracy"]


def test_nodes_learn_digits_that_they_never_saw():
    """Measured: 0.50, local training 0.24, untrained models 0.11."""
    method = DESA(ipc=5, iterations=60, width=32, depth=1, average="holders")
    assert accuracy(method, 40) > accuracy(Local(), 40) + 0.17
    assert accuracy(Local(), 40) > accuracy(FedAvg(), 0) + 0.08


def test_bytes_can_be_counted_without_making_anchors():
    assert DESA().quick() == DESA(iterations=0)
