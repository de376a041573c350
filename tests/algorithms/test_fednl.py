"""FedNL: section 7.5 of the algorithm reference, in float64, against dense matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fednl import FedNL
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.linear_hessian import LinearLayer
from consilience.learning.low_rank import LowRank
from consilience.learning.symmetric_entries import Entries, triangle
from consilience.models import MLP

SIZE = 9
"""How many parameters there are: 3 classes, 2 features and a bias."""
WHOLE = FedNL(rank=SIZE, option="floor", l2=0.1)
"""The compressor leaves nothing out."""


@pytest.fixture
def small(scene):
    """Logistic regression on two features: whatever has rank 1 is found exactly."""

    def make(sizes=(7, 3, 10, 1, 5), problem="classes"):
        base = scene(sizes=sizes, module="logistic")
        data = base.dataset
        targets = F.one_hot(data.targets, 3).double() if problem == "squares" else data.targets
        test = F.one_hot(data.test_targets, 3).double() if problem == "squares" else data.test_targets
        cut = [one[:, :2].numpy() for one in (data.inputs, data.test_inputs)]
        classes = {"classes": 3} if problem == "classes" else {}
        dataset = Dataset.from_arrays("two", cut[0], targets.numpy(), cut[1], test.numpy(), **classes)
        return replace(base, dataset=dataset, build=lambda: nn.Linear(2, 3), executor="sequential")

    return make


def place(simulation):
    """Where the hub's model is, as one vector."""
    params = tree.index(simulation.hub, 0)["params"]
    return LinearLayer.of(params, "test").vector(params)


def learned(simulation):
    """The hub's learned Hessian and those of all clients, dense."""
    hub = tree.index(simulation.hub, 0)["hessian"]
    whole = hub["matrix"] if "matrix" in hub else LowRank(**hub).dense()
    own = simulation.store.load(np.arange(simulation.world.population))["learned"]
    if "positions" in own:
        pairs = zip(own["positions"], own["values"], strict=True)
        return whole, torch.stack([Entries(*pair).dense(len(whole)) for pair in pairs])
    pairs = zip(own["vectors"], own["values"], strict=True)
    return whole, torch.stack([LowRank(*pair).dense() for pair in pairs])


class Dense:
    """FedNL with dense matrices, by the letter of the paper."""

    def __init__(self, scene, start, method, compress, exact=False):
        self.method, self.compress, self.x = method, compress, start
        self.layer = LinearLayer("weight", "bias", 3, 3)
        shards = scene.partitions[0].shards
        self.data = [(scene.dataset.inputs[s].double(), scene.dataset.targets[s]) for s in shards]
        self.own = [
            self.hessian(i, start) if exact else torch.zeros(SIZE, SIZE).double() for i in self.clients
        ]
        self.mean = torch.stack(self.own).mean(0)

    @property
    def clients(self):
        return range(len(self.data))

    def loss(self, client, vector):
        inputs, targets = self.data[client]
        params = self.layer.params(vector)
        logits = inputs @ params["weight"].T + params["bias"]
        if targets.is_floating_point():
            return ((logits - targets) ** 2).mean()
        return F.cross_entropy(logits, targets)

    def gradient(self, client, vector):
        return torch.func.grad(lambda v: self.loss(client, v))(vector)

    def hessian(self, client, vector):
        return torch.func.hessian(lambda v: self.loss(client, v))(vector)

    def objective(self, vector):
        losses = torch.stack([self.loss(client, vector) for client in self.clients])
        return losses.mean() + self.method.l2 / 2 * vector @ vector

    def slope(self, vector):
        return torch.func.grad(self.objective)(vector)

    def learn(self, vector):
        sent = [self.compress(self.hessian(i, vector) - self.own[i]) for i in self.clients]
        self.own = [own + one for own, one in zip(self.own, sent, strict=True)]
        self.mean = self.mean + torch.stack(sent).mean(0)

    def step(self):
        """One round."""
        errors = torch.stack([torch.linalg.norm(self.hessian(i, self.x) - self.own[i]) for i in self.clients])
        matrix = self.mean + self.method.l2 * torch.eye(SIZE).double()
        if self.method.option == "shift":
            matrix = matrix + errors.mean() * torch.eye(SIZE).double()
        else:
            values, vectors = torch.linalg.eigh(matrix)
            matrix = (vectors * values.clamp(min=self.method.mu or self.method.l2)) @ vectors.T
        gradient = self.slope(self.x)
        direction, length = torch.linalg.solve(matrix, gradient), 1.0
        while self.method.line_search and not self.enough(direction, length, gradient):
            length /= 2
        self.learn(self.x)
        self.x = self.x - length * direction

    def enough(self, direction, length, gradient):
        promised = 0.49 * length * gradient @ direction
        return self.objective(self.x - length * direction) <= self.objective(self.x) - promised

    def optimum(self):
        """The minimum of the objective, by Newton's method with shortened steps."""
        x = torch.zeros(SIZE, dtype=torch.float64)
        for number in range(65):
            step = torch.linalg.solve(torch.func.hessian(self.objective)(x), self.slope(x))
            x = x - (0.9 if number < 60 else 1.0) * step
        assert self.slope(x).norm() < 1e-12
        return x


def rank(count):
    def compress(gap):
        values, vectors = torch.linalg.eigh(gap)
        kept = values.abs().argsort()[-count:]
        return (vectors[:, kept] * values[kept]) @ vectors[:, kept].T

    return compress


def top(count):
    def compress(gap):
        upper, inner = gap.triu(), torch.arange(SIZE) % 3
        scores = upper.abs() * torch.where(inner[:, None] > inner, 1 - 2**-10, 1.0)
        kept = scores.flatten().argsort()[-count:]
        chosen = torch.zeros_like(upper).flatten()
        chosen[kept] = upper.flatten()[kept]
        chosen = chosen.reshape(upper.shape)
        return chosen + chosen.T - chosen.diagonal().diag()

    return compress


METHODS = {
    "rank-1": (FedNL(rank=1, l2=0.1), rank(1)),
    "rank-2 floor": (FedNL(rank=2, option="floor", initial="exact", l2=0.1, mu=0.15), rank(2)),
    "rank-1 search": (FedNL(rank=1, option="floor", line_search=True, l2=0.05), rank(1)),
    "rank-1 shift search": (FedNL(rank=1, line_search=True, l2=0.05), rank(1)),
    "top-4": (FedNL("top_k", entries=4, l2=0.1), top(4)),
    "top-9 floor": (FedNL("top_k", option="floor", initial="exact", l2=0.1), top(9)),
}


@pytest.mark.parametrize(("method", "compress"), METHODS.values(), ids=METHODS.keys())
def test_it_is_the_method_with_dense_matrices(small, play, method, compress):
    where = small()
    simulation = play(where, method, 0)
    dense = Dense(where, place(simulation), method, compress, exact=method.initial == "exact")
    for _ in range(4):
        simulation.step(evaluate=False)
        dense.step()
        assert_close(place(simulation), dense.x, rtol=1e-7, atol=1e-8)
        whole, own = learned(simulation)
        assert_close(whole, dense.mean, rtol=1e-7, atol=1e-8)
        assert_close(own, torch.stack(dense.own), rtol=1e-7, atol=1e-8)


def test_where_nothing_is_left_out_a_quadratic_is_solved_in_two_rounds(small, play):
    """The first step is one of gradient descent with rate 1/l2, after which the Hessian is known."""
    where = small(problem="squares")
    for method in (WHOLE, replace(WHOLE, compressor="top_k", entries=triangle(SIZE))):
        simulation = play(where, method, 0)
        dense = Dense(where, place(simulation), method, lambda gap: gap)
        quadratic = torch.func.hessian(dense.objective)(dense.x)
        best = dense.x - torch.linalg.solve(quadratic, dense.slope(dense.x))
        simulation.step(evaluate=False)
        assert (place(simulation) - best).norm() > 1e-2
        simulation.step(evaluate=False)
        assert_close(place(simulation), best, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("option", ["floor", "shift"])
@pytest.mark.parametrize(
    "other",
    [
        {"compressor": "top_k", "entries": triangle(SIZE)},
        {"compressor": "rand_k", "entries": triangle(SIZE)},
        {"rank": 6},  # 3 classes and 3 features: the sums over classes are 0
    ],
    ids=["top_k", "rand_k", "rank"],
)
def test_compressors_that_leave_nothing_out_are_the_same(small, play, option, other):
    first, second = (
        play(small(), one, 5)
        for one in (replace(WHOLE, option=option), replace(WHOLE, option=option, **other))
    )
    assert_close(place(second), place(first), rtol=1e-8, atol=1e-9)


def test_with_exact_hessians_the_first_step_is_newtons(small, play):
    where = small()
    method = FedNL(initial="exact", l2=0.1)
    simulation = play(where, method, 0)
    dense = Dense(where, place(simulation), method, rank(1), exact=True)
    newton = dense.x - torch.linalg.solve(torch.func.hessian(dense.objective)(dense.x), dense.slope(dense.x))
    simulation.step(evaluate=False)
    assert_close(place(simulation), newton, rtol=1e-10, atol=1e-11)


LEARNERS = {
    "rank": {"rank": 1},
    "power_sgd": {"compressor": "power_sgd"},
    "top_k": {"compressor": "top_k", "entries": 6},
    "rand_k": {"compressor": "rand_k", "entries": 30},
    "floor": {"option": "floor"},
    "leading": {"initial": "leading", "capacity": 8},
    "search": {"option": "floor", "line_search": True, "initial": "zero"},
}


@pytest.mark.parametrize("options", LEARNERS.values(), ids=LEARNERS.keys())
def test_convergence_is_superlinear(small, play, options):
    """The factor by which the distance falls goes to 0, while bytes stay those of a few columns."""
    where = small()
    method = FedNL(**{"initial": "exact", "l2": 0.1, **options})
    simulation = play(where, method, 0)
    best = Dense(where, place(simulation), method, rank(1)).optimum()
    distances = [(place(simulation) - best).norm().item()]
    while distances[-1] > 1e-11 and len(distances) < 60:
        simulation.step(evaluate=False)
        distances.append((place(simulation) - best).norm().item())
    assert distances[-1] < 1e-11
    ratios = np.array(distances[1:]) / np.array(distances[:-1])
    # The last one may be rounding.
    assert ratios[-3:-1].min() < 0.25 * np.median(ratios[: len(ratios) // 2])


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 2, "capacity": 4},
        {"compressor": "power_sgd", "capacity": 4},
        {"compressor": "top_k", "entries": 5, "capacity": 4},
        {"compressor": "rand_k", "entries": 5, "capacity": 4},
        {"compressor": "power_sgd", "partial": True},
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_the_hub_has_the_mean_of_what_clients_have_learned(small, play, options):
    """So it is when their places are full: here that takes two rounds."""
    simulation = play(small(), FedNL(**options, l2=0.1), 0)
    for _ in range(8):
        simulation.step(evaluate=False)
        whole, own = learned(simulation)
        assert_close(whole, own.mean(0), rtol=1e-9, atol=1e-11)
    assert own.flatten(1).norm(dim=1).min() > 1e-3


def test_learning_goes_on_where_places_are_full(small, play):
    """What is kept stays within the span, and gets closer to the Hessian there."""
    where, method = small((12, 9)), FedNL(rank=1, capacity=2, l2=0.1)
    simulation = play(where, method, 2)
    dense = Dense(where, place(simulation), method, rank(1))
    span = torch.linalg.svd(learned(simulation)[1][0]).U[:, :2]
    for _ in range(12):
        simulation.step(evaluate=False)
    own = learned(simulation)[1][0]
    assert_close(span @ span.T @ own, own, rtol=1e-8, atol=1e-10)
    gap = span.T @ (dense.hessian(0, place(simulation)) - own) @ span
    assert gap.norm() < 1e-3 * own.norm()


def test_some_clients_a_round_reach_the_optimum(small, play):
    where = replace(small(), participation=2)
    method = FedNL(partial=True, initial="exact", l2=0.1)
    simulation = play(where, method, 0)
    dense = Dense(where, place(simulation), method, rank(1), exact=True)
    for _ in range(80):
        simulation.step(evaluate=False)
    assert_close(place(simulation), dense.optimum(), rtol=1e-7, atol=1e-8)


def test_the_hub_keeps_the_mean_of_clients_systems(small, play):
    simulation = play(replace(small(), participation=2), FedNL(partial=True, l2=0.1), 5)
    hub = tree.index(simulation.hub, 0)
    own = simulation.store.load(np.arange(5))["own"]
    assert_close(hub["target"]["mean"], own["target"].mean(0), rtol=1e-9, atol=1e-11)
    assert_close(hub["shift"]["mean"], own["shift"].mean(0), rtol=1e-9, atol=1e-11)
    matrix = learned(simulation)[0] + (0.1 + hub["shift"]["mean"]) * torch.eye(SIZE).double()
    assert_close(place(simulation), torch.linalg.solve(matrix, hub["target"]["mean"]), rtol=1e-9, atol=1e-11)


def test_without_learning_cohorts_of_all_are_option_shift(small, play):
    """The setup is the first step: every round is one of rate 1 / (mean norm of the Hessians + l2)."""
    cohorts, plain = (play(small(), FedNL(partial=one, l2=0.1, alpha=0.0), 2 - one) for one in (True, False))
    assert_close(place(cohorts), place(plain), rtol=1e-9, atol=1e-10)
    assert cohorts.step(evaluate=False)[0].bytes_up["target"] == 5 * 8 * SIZE


# What travels

UP = {
    "rank": ({"rank": 2}, 8 * 2 * (SIZE + 1)),
    "power_sgd": ({"compressor": "power_sgd", "rank": 2}, 8 * 2 * 2 * SIZE),
    "top_k": ({"compressor": "top_k", "entries": 7}, 7 * (8 + 4)),
    "top_k usual": ({"compressor": "top_k"}, SIZE * (8 + 4)),
    "rand_k": ({"compressor": "rand_k", "entries": 7}, 7 * (8 + 4)),
}


@pytest.mark.parametrize(("options", "size"), UP.values(), ids=UP.keys())
def test_bytes(small, play, options, size):
    record = play(small(), FedNL(**options), 0).step(evaluate=False)[0]
    assert record.bytes_up["hessian"] == 5 * size
    assert record.bytes_up["gradient"] == record.bytes_down["params"] == 5 * 8 * SIZE
    assert record.bytes_up["shift"] == 5 * 8
    assert record.bytes_up.keys() == {"gradient", "hessian", "shift", "header"}
    floor = play(small(), FedNL(**options, option="floor"), 0).step(evaluate=False)[0]
    assert "shift" not in floor.bytes_up


def test_the_first_hessian_travels_once(small, play):
    simulation = play(small(), FedNL(initial="exact"), 0)
    first, second = (simulation.step(evaluate=False)[0].bytes_up for _ in range(2))
    assert first["upper"] == 5 * 8 * triangle(SIZE)
    assert "upper" not in second


def test_a_line_search_sends_the_step_and_25_losses(small, play):
    record = play(small(), FedNL(option="floor", line_search=True), 0).step(evaluate=False)[0]
    assert record.bytes_up["losses"] == 5 * 8 * 25
    assert record.bytes_down["step"] == record.bytes_down["params"] == 5 * 8 * SIZE


def test_random_entries_are_learned_as_they_are(small, play):
    """Of 45 entries 15 are drawn, one in three: each is sent threefold and learned by a third."""
    where = small()
    simulation = play(where, FedNL("rand_k", entries=15, l2=0.1), 0)
    dense = Dense(where, place(simulation), FedNL(), rank(1))
    simulation.step(evaluate=False)
    own = learned(simulation)[1]
    truth = torch.stack([dense.hessian(i, dense.x) for i in dense.clients])
    chosen = own != 0
    assert_close(own[chosen], truth[chosen], rtol=1e-9, atol=1e-12)
    assert (chosen.triu().sum((1, 2)) <= 15).all()
    assert not torch.equal(chosen[0], chosen[2])  # everybody draws for themselves


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l2": 0.0}, "l2 or mu must be above 0"),
        ({"mu": 0.1}, "mu is for option floor"),
        ({"entries": 4}, "entries are for top_k and rand_k, not for rank"),
        ({"rank": 0}, "rank and entries must be at least 1"),
        ({"rank": 9, "capacity": 10}, "capacity must be at least 2 rank, not 10"),
        ({"partial": True, "line_search": True}, "with partial the step is that of option shift"),
        ({"alpha": -1.0}, "alpha must be at least 0"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(UserError, match=message):
        FedNL(**options)


def test_refusals(scene, small, play):
    with pytest.raises(UserError, match=r"fednl: exact Hessians .*model: logistic.* Hessian would take"):
        play(scene(), FedNL())
    wide = replace(scene(), build=lambda: MLP((200, 200)).build((6,), 3))
    with pytest.raises(UserError, match=r"42,203 parameters .* would take 14.2 GB"):
        play(wide, FedNL())
    for kind, needed in (("rank", 9), ("top_k", 10)):
        play(small(), FedNL(kind, initial="exact", capacity=needed), 1)
        with pytest.raises(UserError, match=f"takes a capacity of {needed}, not {needed - 1}"):
            play(small(), FedNL(kind, initial="exact", capacity=needed - 1))
    with pytest.raises(UserError, match="entries may be at most 9 here, not 10"):
        play(small(), FedNL("top_k", entries=10, capacity=4))
    with pytest.raises(UserError, match=r"fednl: .* not defined on a graph"):
        play(replace(small(), topology=Ring()), FedNL())
    with pytest.raises(UserError, match="for cohorts of some clients set partial"):
        play(replace(small(), participation=2), FedNL())
