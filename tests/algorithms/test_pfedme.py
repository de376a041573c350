"""pFedMe: section 5.8 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.pfedme import MoreauStep, PFedMe
from consilience.data import load
from consilience.data.partition import partition
from consilience.data.partitioners import ShardsTwoClasses
from consilience.engine.build import simulate
from consilience.engine.executors.lanes import Batched
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.batches import Visit, training_plan
from consilience.learning.solvers import SGD, Adam
from consilience.learning.task import Output
from consilience.models import MLP
from consilience.types import Batch


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A task whose loss is `(v - a)' H (v - a) / 2`, whatever the row."""

    hessian: torch.Tensor
    centre: torch.Tensor

    def forward(self, model, batch, *, training):
        assert training
        return Output(batch.inputs, model["params"]["v"].expand(len(batch.inputs), -1), model["buffers"])

    def loss(self, logits, targets):
        away = logits - self.centre
        return 0.5 * (away @ self.hessian * away).sum(-1)

    def regularised(self, loss, params):
        return loss


def step_on(task, method, solver, start, personal):
    """The carry after one batch, of three rows that count and one that does not."""
    rows, zero = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    batch = Batch(torch.zeros(4, 1), torch.zeros(4), rows, torch.tensor(0))
    carry = {
        "params": {"v": start},
        "buffers": {},
        "personal": {"v": personal},
        "tally": {"loss": zero, "rows": zero},
    }
    step, extras = MoreauStep(task, method, solver), {"method": {}, "solver": {}}
    after = step(carry, batch, extras)
    written = tree.map_leaves(torch.clone, carry)
    step.advance_in_place(written, step.measure(carry, batch, extras), extras)
    assert_close(written, after, rtol=1e-12, atol=1e-14)
    return after


@pytest.fixture
def quadratic():
    random = torch.Generator().manual_seed(0)
    root, a, w, theta = (
        torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((5, 5), (5,), (5,), (5,))
    )
    return Quadratic(root @ root.T / 5 + 0.1 * torch.eye(5, dtype=torch.float64), a), w, theta


# 1
def test_a_step_of_one_over_the_strength_ends_at_the_personal_model(quadratic):
    after = step_on(quadratic[0], PFedMe(strength=4.0), SGD(0.25), *quadratic[1:])
    assert_close(after["params"], after["personal"], rtol=1e-14, atol=1e-15)
    assert (after["params"]["v"] - quadratic[1]).norm() > 0.1


# 2
def test_an_infinite_strength_keeps_the_personal_model_at_the_local_copy(quadratic):
    task, w, theta = quadratic
    for strength in (1e2, 1e4, 1e6):
        after = step_on(task, PFedMe(strength, 1 / (strength + 5), 60), SGD(0.0), w, theta)
        away = (after["personal"]["v"] - w).norm()
        assert away < 20 / strength
    assert away < 1e-4


# 3
@pytest.mark.parametrize("strength", [0.5, 2.0, 15.0])
def test_the_personal_model_of_a_quadratic_is_the_closed_form(quadratic, strength):
    task, w, theta = quadratic
    after = step_on(task, PFedMe(strength, 1 / (strength + 3), 400), SGD(0.01), w, theta)
    system = task.hessian + strength * torch.eye(5, dtype=torch.float64)
    exact = torch.linalg.solve(system, task.hessian @ task.centre + strength * w)
    assert_close(after["personal"]["v"], exact, rtol=1e-10, atol=1e-10)
    assert_close(after["params"]["v"], w - 0.01 * strength * (w - exact), rtol=1e-10, atol=1e-10)


# 4
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_server_that_does_not_listen_stays_where_it_is(scene, play, dtype):
    where = scene(dtype=dtype)
    before, after = (play(where, PFedMe(beta=0.0), rounds) for rounds in (0, 3))
    assert_close(model(before), model(after), rtol=0, atol=0)
    assert tree.sq_norm(tree.sub(tree.index(after.store.load([0]), 0)["personal"], model(after))) > 1e-4


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_the_server_goes_as_far_as_it_is_told(scene, play, beta):
    before, whole, some = (
        model(play(scene(), PFedMe(beta=b), rounds)) for b, rounds in ((1.0, 0), (1.0, 1), (beta, 1))
    )
    assert_close(some, tree.axpy(beta, tree.sub(whole, before), before), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_steps_are_those_of_the_paper(scene, play, clip):
    """By hand: every batch K steps of theta from where it was, also in the last round, then one of w_k."""
    where = scene(sizes=(11,), module="logistic", epochs=2, batch_size=4)
    where = replace(where, work=replace(where.work, clip=clip))
    w = model(play(where, PFedMe(), 0))
    theta, losses = w, []
    simulation = play(where, PFedMe(3.0, 0.1, 4, 0.8), 0, SGD(0.2))
    for number in range(3):
        record = simulation.step(evaluate=False)[0]
        visit = Visit(0, number, 0, where.partitions[0].shards[0])
        order = training_plan([visit], [range(2)], None, 4, torch.device("cpu"))
        own, losses = w, []
        for padded, size in zip(order.rows, order.sizes, strict=True):
            inputs, targets = where.dataset.inputs[padded[:size]], where.dataset.targets[padded[:size]]

            def loss(params, inputs=inputs, targets=targets):
                return F.cross_entropy(F.linear(inputs, *params.values()), targets)

            losses += [loss(theta)] * int(size)
            for _ in range(4):
                grads = tree.axpy(3.0, tree.sub(theta, own), torch.func.grad(loss)(theta))
                if clip is not None:
                    grads = tree.scale(min(1.0, clip / float(tree.sq_norm(grads).sqrt())), grads)
                theta = tree.axpy(-0.1, grads, theta)
            own = tree.axpy(-0.2 * 3.0, tree.sub(own, theta), own)
        w = tree.add(tree.scale(0.2, w), tree.scale(0.8, own))
        assert_close(model(simulation), w, rtol=1e-12, atol=1e-14)
        assert_close(tree.index(simulation.store.load([0]), 0)["personal"], theta, rtol=1e-12, atol=1e-14)
        assert record.samples == 22
        assert record.train_loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-12)


@pytest.mark.parametrize(("module", "lanes"), [("mlp", 1), ("mlp", 2), ("normalised", 100)])
def test_all_at_once_is_one_after_the_other(scene, module, lanes):
    """Also where hyper-parameters differ between lanes, and where a single lane writes over its numbers."""
    where = replace(scene(module=module, epochs=1), executor="sequential")
    methods = PFedMe(5.0, inner_steps=2), PFedMe(3.0, 0.05, 2, 0.5)
    variants = [(methods[0], SGD(0.1)), (methods[0], SGD(0.05)), (methods[1], SGD(0.1))]
    for chosen in (variants[:1], variants):
        expected, found = (simulate(where, chosen) for _ in range(2))
        batched = Batched(found.world.pool, lanes, 4)
        found = Simulation(replace(found.world, executor=batched), found.algorithm)
        for _ in range(2):
            losses = [[r.train_loss for r in one.step(evaluate=False)] for one in (expected, found)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-10)
        assert_close(expected.hub, found.hub, rtol=1e-10, atol=1e-12)
        rows = range(5 * len(chosen))
        assert_close(expected.store.load(rows), found.store.load(rows), rtol=1e-10, atol=1e-12)


def test_until_its_first_round_a_clients_own_model_is_the_initial_one(scene, play):
    simulation = play(replace(scene(), participation=2), PFedMe(), 0)
    start = model(simulation)
    before = simulation.evaluate()[0]
    assert {"test_accuracy", "personal_train_accuracy", "personal_train_accuracy_std"} <= before.keys()
    simulation.step(evaluate=False)
    own = simulation.models([(0, k) for k in range(5)], own=True)["params"]
    same = [all(torch.equal(own[name][k], value) for name, value in start.items()) for k in range(5)]
    assert sum(same) == 3


def test_on_a_graph_every_node_has_a_model_of_its_own_too(scene, play):
    simulation = play(replace(scene(), topology=Ring()), PFedMe(5.0), 2)
    assert {"test_accuracy", "personal_train_accuracy"} <= simulation.evaluate()[0].keys()


@pytest.fixture(scope="module")
def digits():
    """Ten clients with two digits each that hold a fifth of their data out, after eight rounds."""
    data = load("mnist-sample")
    shards = partition(ShardsTwoClasses(holdout=0.2), data.targets.numpy(), 10, 0)
    where = Scene(
        dataset=data,
        build=lambda: MLP((64,)).build(data.shape, 10),
        partitions={0: shards},
        topology=Star(),
        work=LocalWork(1, None, 32),
        participation=10,
    )
    simulation = simulate(where, [(PFedMe(personal_lr=0.02), SGD(0.05))])
    before = simulation.evaluate()[0]
    for _ in range(7):
        simulation.step(evaluate=False)
    return simulation, before, simulation.step()[0].scores


def test_personal_models_beat_the_global_one_on_their_own_data(digits):
    """Measured: 0.96 and 0.75."""
    simulation, _, scores = digits
    clients = simulation.clients()
    own = sum(client["own_accuracy"] for client in clients) / len(clients)
    personal = sum(client["personal_accuracy"] for client in clients) / len(clients)
    assert scores["personal_accuracy"] == pytest.approx(personal)
    assert personal > 0.92
    assert personal > own + 0.1


def test_it_learns(digits):
    """Measured: from 0.15 to 0.77 on the global test set, where FedAvg reaches 0.77 too."""
    _, before, after = digits
    assert after["test_accuracy"] > before["test_accuracy"] + 0.5
    assert after["personal_loss"] < 0.2 * before["personal_loss"]


def test_bytes_are_those_of_fedavg(scene, play):
    records = [play(scene(), method, 0).step()[0] for method in (PFedMe(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_down == records[1].bytes_down


@pytest.mark.parametrize("solver", [SGD(0.1, momentum=0.5), SGD(0.1, weight_decay=0.1), Adam(0.01)])
def test_other_solvers_than_plain_sgd_are_refused(scene, play, solver):
    with pytest.raises(UserError, match="pfedme: its steps use a learning rate alone: set solver sgd"):
        play(scene(), PFedMe(), 1, solver)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, r"strength must be at least 0, not -1\.0"),
        ({"personal_lr": -0.1}, r"personal_lr must be at least 0, not -0\.1"),
        ({"beta": -0.5}, r"beta must be at least 0, not -0\.5"),
        ({"inner_steps": 0}, "inner_steps must be at least 1, not 0"),
    ],
)
def test_impossible_numbers_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        PFedMe(**options)
