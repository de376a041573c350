"""BL1: section 7.6 of the algorithm reference, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.bl1 import BL1
from consilience.algorithms.exact_hessian import lifted
from consilience.algorithms.fednl import FedNL
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.linear_hessian import LinearLayer
from consilience.learning.low_rank import LowRank
from consilience.learning.symmetric_entries import Entries

FEATURES, SIZE = 7, 21
"""Six inputs and a bias, and with three classes so many parameters."""
LAYER = LinearLayer("weight", "bias", 3, FEATURES)
STANDARD = BL1(basis="standard", l2=0.2)


@pytest.fixture
def where(scene):
    return replace(scene(sizes=(7, 3, 10, 1, 5), module="logistic"), executor="sequential")


def place(simulation):
    """Where the hub's model is, as one vector."""
    return LAYER.vector(tree.index(simulation.hub, 0)["params"])


def losses(scene):
    """The loss of every client as a function of the model."""

    def of(shard):
        inputs, targets = scene.dataset.inputs[shard], scene.dataset.targets[shard]

        def loss(vector):
            params = LAYER.params(vector)
            return F.cross_entropy(inputs @ params["weight"].T + params["bias"], targets)

        return loss

    return [of(shard) for shard in scene.partitions[0].shards]


def objective(scene, l2):
    own = losses(scene)
    return lambda vector: torch.stack([one(vector) for one in own]).mean() + l2 / 2 * vector @ vector


def newton(function, x, steps=1):
    for _ in range(steps):
        x = x - torch.linalg.solve(torch.func.hessian(function)(x), torch.func.grad(function)(x))
    return x


def clients(simulation, group):
    return simulation.store.load(np.arange(simulation.world.population))[group]


# 1
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"initial": "zero"}, {"initial": "zero"}),
        ({"initial": "leading"}, {"initial": "exact"}),
        ({"compressor": "top_k", "initial": "zero"}, {"compressor": "top_k"}),
        ({"compressor": "power_sgd", "rank": 2, "initial": "zero"}, {"compressor": "power_sgd", "rank": 2}),
    ],
    ids=["zero", "exact", "top_k", "power_sgd"],
)
def test_in_the_standard_basis_it_is_fednl(where, play, ours, theirs):
    simulations = [
        play(where, one, 0) for one in (replace(STANDARD, **ours), FedNL(option="floor", l2=0.2, **theirs))
    ]
    for _ in range(4):
        for one in simulations:
            one.step(evaluate=False)
        assert_close(*map(place, simulations), rtol=1e-8, atol=1e-9)


# 2
def test_the_basis_holds_the_hessian_and_the_gradient(where, play):
    simulation = play(where, BL1(), 1)
    x = torch.randn(SIZE, dtype=torch.float64)
    for basis, loss, size in zip(
        clients(simulation, "basis")["vectors"], losses(where), (7, 3, 10, 1, 5), strict=True
    ):
        rank = min(size, FEATURES)
        assert_close(basis.T @ basis, (basis != 0).any(0).double().diag())
        assert (basis != 0).any(0).sum() == rank
        hessian, gradient = torch.func.hessian(loss)(x), torch.func.grad(loss)(x)
        projected = lifted(basis, lifted(basis.T, hessian))
        projected = lifted(basis, lifted(basis.T, projected.T))
        assert_close(projected, hessian, rtol=1e-10, atol=1e-10)
        assert_close(
            lifted(basis, lifted(basis.T, gradient[:, None]))[:, 0], gradient, rtol=1e-10, atol=1e-10
        )


# 3
def test_where_all_is_sent_the_first_step_is_newtons(where, play):
    simulation = play(where, BL1(l2=0.2), 0)
    expected = newton(objective(where, 0.2), place(simulation))
    simulation.step(evaluate=False)
    assert_close(place(simulation), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("compressor", ["rank", "top_k"])
def test_where_nothing_is_left_out_the_basis_does_not_matter(where, play, compressor):
    whole = BL1(compressor, rank=SIZE, entries=231, l2=0.2, initial="zero")
    first, second = (play(where, one, 4) for one in (whole, replace(whole, basis="standard")))
    assert_close(place(first), place(second), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compressor": "top_k", "entries": 10},
        {"compressor": "power_sgd", "rank": 2},
        {"one_in": 3},
        {"broadcast_one_in": 3},
        {"one_in": 2, "broadcast_one_in": 2, "eta": 0.9},
    ],
    ids=lambda one: "-".join(f"{key}={value}" for key, value in one.items()) or "usual",
)
def test_it_reaches_the_optimum(where, play, options):
    simulation = play(where, BL1(l2=0.2, **options), 40)
    best = newton(objective(where, 0.2), torch.zeros(SIZE, dtype=torch.float64), 30)
    assert_close(place(simulation), best, rtol=1e-6, atol=1e-7)


def test_convergence_is_superlinear(where, play):
    simulation = play(where, BL1(l2=0.2), 0)
    best = newton(objective(where, 0.2), torch.zeros(SIZE, dtype=torch.float64), 30)
    distances = [(place(simulation) - best).norm().item()]
    while distances[-1] > 1e-11 and len(distances) < 40:
        simulation.step(evaluate=False)
        distances.append((place(simulation) - best).norm().item())
    ratios = np.array(distances[1:]) / np.array(distances[:-1])
    assert distances[-1] < 1e-11
    assert ratios[-3:-1].min() < 0.25 * np.median(ratios[: len(ratios) // 2])


@pytest.mark.parametrize("compressor", ["rank", "top_k", "power_sgd"])
def test_the_hub_has_the_mean_of_what_clients_have_learned(where, play, compressor):
    simulation = play(where, BL1(compressor, l2=0.2, directions=5, capacity=4), 5)
    hub = tree.index(simulation.hub, 0)["hessian"]
    whole = hub["matrix"] if "matrix" in hub else LowRank(hub["vectors"], hub["values"]).dense()
    own, total = clients(simulation, "learned"), torch.zeros_like(whole)
    for number, basis in enumerate(clients(simulation, "basis")["vectors"]):
        if compressor == "top_k":
            small = Entries(own["positions"][number], own["values"][number]).dense(15)
        else:
            small = LowRank(own["vectors"][number], own["values"][number]).dense()
        total += lifted(basis, lifted(basis, small).T) / 5
    assert_close(whole, total, rtol=1e-8, atol=1e-10)
    assert whole.norm() > 1e-2


# What travels


def test_bases_travel_once_and_coefficients_after_that(where, play):
    simulation = play(where, BL1(directions=3, rank=2, capacity=8), 0)
    first, second = (simulation.step(evaluate=False)[0] for _ in range(2))
    assert first.bytes_up["basis"] == 5 * 8 * FEATURES * 3
    assert first.bytes_up["hessian"] == 5 * 8 * 4 * (9 + 1)  # half of the places
    assert second.bytes_up.keys() == {"slope", "hessian", "header"}
    assert second.bytes_up["slope"] == 5 * 8 * 9
    assert second.bytes_up["hessian"] == 5 * 8 * 2 * (9 + 1)
    assert second.bytes_down["params"] == 5 * 8 * SIZE


def test_gradients_travel_in_some_rounds(where, play):
    simulation = play(where, BL1(one_in=3), 0)
    sent = ["slope" in simulation.step(evaluate=False)[0].bytes_up for _ in range(30)]
    assert sent[0]
    assert 3 <= sum(sent) <= 18


def test_a_packed_move_comes_down(where, play):
    simulation = play(where, BL1(broadcast_one_in=4), 1)
    before = place(simulation)
    record = simulation.step(evaluate=False)[0]
    assert record.bytes_down["move"] == 5 * 6 * (8 + 4)
    assert "params" not in record.bytes_down
    assert (place(simulation) != before).sum() == 6


def test_clients_follow_the_packed_moves(where, play):
    simulation = play(where, BL1(broadcast_one_in=4, eta=0.7), 4)
    before = place(simulation)
    simulation.step(evaluate=False)
    for number in range(5):
        own = {name: value[number] for name, value in clients(simulation, "model").items()}
        assert_close(LAYER.vector(own), before, rtol=1e-12, atol=1e-13)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l2": 0.0}, "l2 or mu must be above 0"),
        ({"one_in": 0}, "one_in and broadcast_one_in must be at least 1"),
        ({"rank": 9, "capacity": 10}, "capacity must be at least 2 rank, not 10"),
        ({"basis": "standard", "directions": 3}, "directions are those of basis data"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(UserError, match=message):
        BL1(**options)


def test_refusals(scene, where, play):
    with pytest.raises(UserError, match=r"bl1: exact Hessians .*model: logistic.* Hessian would take"):
        play(scene(), BL1())
    with pytest.raises(UserError, match=r"bl1: .* not defined on a graph"):
        play(replace(where, topology=Ring()), BL1())
    with pytest.raises(UserError, match="nobody may be missing"):
        play(replace(where, participation=2), BL1())
    with pytest.raises(UserError, match="entries may be at most 21 here, not 22"):
        play(where, BL1("top_k", entries=22, capacity=4))
