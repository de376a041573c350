"""DecDiff and DecDiff+VT: section 8.3 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.decdiff import DecDiff
from consilience.algorithms.decdiff_vt import DecDiffVT
from consilience.algorithms.fedavg import FedAvg
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.graphs.line import Line
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.learning.task import Task
from consilience.method import Composed
from consilience.objectives.virtual_teacher import VirtualTeacher
from consilience.rules.bounded_move import BoundedMove

STILL = SGD(0.0)
"""Local training that changes nothing."""
HEARD = (7, 3, 10, 0, 5)
"""Samples; the fourth node was not heard."""
RULES = [
    BoundedMove(scope, s, weighting)
    for scope in ("tensor", "model")
    for s in (1.0, 3.0)
    for weighting in ("uniform", "samples")
]


def messages(size=1.0):
    """What five nodes send: two tensors, far apart where size is large."""
    random = torch.Generator().manual_seed(0)
    return {
        "params": {
            name: size * torch.randn(5, *shape, generator=random, dtype=torch.float64)
            for name, shape in (("w", (4, 3)), ("b", (3,)))
        }
    }


def distance(left, right):
    return tree.sq_norm(tree.sub(left, right)).sqrt()


def own_and_mean(heard, weighting):
    """Node 2's model, and the mean of its neighbours'."""
    sizes = torch.tensor([7.0, 3, 0, 0, 5] if weighting == "samples" else [1.0, 1, 0, 0, 1]).double()
    mean = {n: torch.einsum("j,j...->...", sizes / sizes.sum(), v) for n, v in heard["params"].items()}
    return tree.index(heard, 2)["params"], mean


# 1, 3
@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_moves_are_bounded_and_end_between_the_node_and_its_neighbours(inbox, rule, size):
    heard = messages(size)
    own, mean = own_and_mean(heard, rule.weighting)
    moved = rule.merge(own, inbox(heard, HEARD, node=2))
    units = [["w"], ["b"]] if rule.scope == "tensor" else [["w", "b"]]
    for names in units:
        start, goal, end = ({n: part[n] for n in names} for part in (own, mean, moved))
        way = distance(start, goal)
        assert 0 < distance(start, end) < 1
        assert_close(distance(start, end), way / (way + rule.s))
        assert_close(distance(start, end) + distance(end, goal), way)


# 2
@pytest.mark.parametrize("scope", ["tensor", "model"])
def test_consensus_is_a_fixed_point_bit_for_bit(scene, play, scope):
    where = replace(scene(dtype=torch.float32), topology=Ring(), init="common")
    before, after = (play(where, DecDiff(scope), rounds, STILL).hub for rounds in (0, 3))
    assert_close(before, after, rtol=0, atol=0)


def test_a_wider_scope_moves_less(inbox):
    heard = messages(10.0)
    own = tree.index(heard, 2)["params"]
    ends = [BoundedMove(scope).merge(own, inbox(heard, HEARD, node=2)) for scope in ("tensor", "model")]
    assert distance(own, ends[1]) < 1 < distance(own, ends[0])  # each of two tensors may move by up to 1


@pytest.mark.parametrize("rule", RULES[::3], ids=repr)
def test_who_hears_nobody_keeps_its_model(inbox, rule):
    heard = messages()
    own = tree.index(heard, 2)["params"]
    found = rule.merge(tree.index(heard, 0)["params"], inbox(heard, (0, 0, 10, 0, 0), node=2))
    assert_close(found, own, rtol=0, atol=0)


def test_a_node_without_data_moves_from_where_it_is(scene, play):
    where = replace(scene(sizes=(7, 0, 10)), topology=Line(), init="different")
    simulation = play(where, DecDiff(), 0, STILL)
    models = simulation.hub["params"]["0.bias"][0].clone()
    simulation.step(evaluate=False)
    way = (models[0] + models[2]) / 2 - models[1]
    assert_close(simulation.hub["params"]["0.bias"][0, 1], models[1] + way / (way.norm() + 1))


def test_without_training_nodes_come_together(scene, play):
    where = replace(scene(sizes=(7, 3, 4), epochs=1, batch_size=100), topology=Ring(), init="different")
    spreads = [play(where, DecDiff(), r, STILL).hub["params"]["0.weight"].std(1).max() for r in (0, 25)]
    assert spreads[1] < 1e-3 * spreads[0]


def test_buffers_are_averaged(scene, play):
    where = replace(scene(module="normalised", sizes=(7, 9, 10)), topology=Ring(), init="different")
    found, expected = (tree.index(play(where, m, 1).hub, 0)["buffers"] for m in (DecDiff(), FedAvg()))
    assert_close(found, expected, rtol=0, atol=0)


@pytest.fixture
def rows():
    """Logits and targets of eight rows of which none is of class 3 or 4."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(8, 5, generator=random, dtype=torch.float64), torch.arange(8) % 3


@pytest.fixture
def task():
    return Task(torch.nn.Linear(2, 5), torch.float64)


# 4
@pytest.mark.parametrize("beta", [0.6, 0.9, 0.99])
def test_a_whole_teacher_has_the_gradient_of_label_smoothing(task, rows, beta):
    logits, targets = rows
    found = torch.func.grad(lambda z: VirtualTeacher(1.0, beta).fit(task, z, targets).sum())(logits)
    smoothing = (1 - beta) * 5 / 4
    expected = torch.func.grad(
        lambda z: F.cross_entropy(z, targets, label_smoothing=smoothing, reduction="sum")
    )(logits)
    assert_close(found, expected)


# 5
@pytest.mark.parametrize("teacher", [VirtualTeacher(alpha=0.0), VirtualTeacher(beta=1.0)], ids=repr)
def test_without_a_teacher_it_is_cross_entropy_bit_for_bit(task, rows, teacher):
    assert torch.equal(teacher.fit(task, *rows), task.loss(*rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"beta": 1.0}], ids=str)
def test_without_a_teacher_it_is_decdiff_bit_for_bit(scene, play, dtype, options):
    where = replace(scene(dtype=dtype), topology=Ring(), init="different")
    solver = SGD(0.1, momentum=0.9)
    found, expected = (play(where, m, 2, solver).hub for m in (DecDiffVT(**options), DecDiff()))
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.99), (0.3, 0.7), (0.5, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("swept", [False, True])
def test_the_loss_is_the_printed_one(task, rows, alpha, beta, swept):
    """Over all classes: also those of which the rows have none."""
    logits, targets = rows
    teacher = torch.full((8, 5), (1 - beta) / 4, dtype=torch.float64)
    teacher[torch.arange(8), targets] = beta
    divergence = F.kl_div(F.log_softmax(logits, -1), teacher, reduction="none").sum(-1)
    expected = (1 - alpha) * F.cross_entropy(logits, targets, reduction="none") + alpha * divergence
    numbers = [torch.tensor(n, dtype=torch.float64) if swept else n for n in (alpha, beta)]
    assert_close(VirtualTeacher(*numbers).fit(task, logits, targets), expected)


def test_a_perfect_student_has_no_loss(task, rows):
    targets = rows[1]
    teacher = torch.full((8, 5), 0.01 / 4, dtype=torch.float64)
    teacher[torch.arange(8), targets] = 0.99
    found = VirtualTeacher().fit(task, teacher.log(), targets)
    assert_close(found, torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-14)


def test_a_sweep_gives_what_each_teacher_gives_alone(scene, play):
    where = replace(scene(), topology=Ring(), init="different")
    variants = DecDiffVT(0.5, 0.9), DecDiffVT(0.0, 1.0)
    swept = simulate(where, [(method, SGD(0.1)) for method in variants])
    for _ in range(2):
        swept.step(evaluate=False)
    for number, method in enumerate(variants):
        alone = tree.index(play(where, method, 2).hub, 0)
        assert_close(tree.index(swept.hub, number), alone, rtol=1e-12, atol=1e-14)


def test_the_teacher_also_works_at_a_star(scene, play):
    taught, plain = (play(scene(), m, 2).hub for m in (Composed(VirtualTeacher()), FedAvg()))
    assert distance(taught["params"], plain["params"]) > 1e-4


def test_bytes_are_one_model_per_neighbour(scene, play):
    where = replace(scene(), topology=Line())
    records = [play(where, method, 0).step()[0] for method in (DecDiff(), DecDiffVT(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up == records[2].bytes_up


@pytest.mark.parametrize("method", [DecDiff(), DecDiffVT()], ids=lambda one: one.name)
def test_a_star_is_refused(scene, play, method):
    with pytest.raises(
        UserError, match=f"{method.name}: bounded_move is defined on a graph of peers: set topology"
    ):
        play(scene(), method)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"s": 0.0}, r"s must be above 0, not 0\.0"),
        ({"alpha": 1.5}, r"alpha must be from 0 to 1, not 1\.5"),
        ({"beta": -0.1}, r"beta must be from 0 to 1, not -0\.1"),
    ],
)
def test_impossible_numbers_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        DecDiffVT(**options)
