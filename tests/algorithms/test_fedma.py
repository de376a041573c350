"""FedMA: section 6.1 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedma import SENDERS, SOURCES, FedMA
from consilience.algorithms.fedma_matching import Prior, match, sources, sums
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.exchange.inbox import Arrival, make_inbox
from consilience.exchange.schemas import idle_client
from consilience.exchange.traffic import row_bytes
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.models import MLP, LeNet5
from consilience.problems import Regression
from consilience.testing.watching import Watch, Watched
from consilience.transforms.clipped import Clipped
from consilience.transforms.until import Until

SIZES = (5, 9, 2)
PRIOR = Prior(sigma=1.0, sigma0=1.0, gamma=7.0, kappa=2.0)
WORK = LocalWork(1, None, 4)


def fuse(network, algorithm, models, *, rows=None, skipped=()):
    """The hub after a pass without training, in which every client starts from a model of its own.

    Args:
        network: What the models are parameters of.
        algorithm: FedMA.
        models: The clients' parameters.
        rows: [clients, classes] their samples, by class.
        skipped: Exchanges in which nobody is heard.
    """
    algorithm = algorithm.for_model(network.model)
    hub = algorithm.init_hub(network.model)
    nobody = idle_client(network.task, SGD(0.1), WORK, torch.device("cpu"), peer=False)
    clients = [replace(nobody, key=torch.tensor(100 + number)) for number in range(len(models))]
    memories = [algorithm.init_memory(network.model) for _ in models]
    for number, phase in enumerate(algorithm.phases()):
        down, arrivals = phase.broadcast(hub), []
        for i, client in enumerate(clients):
            given = {"params": models[i], "buffers": {}} if number == 0 else down
            upload, memories[i] = phase.local(client, given, memories[i])
            if rows is not None and "classes" in upload:
                upload["classes"] = {"rows": torch.tensor(rows[i], dtype=torch.float64)}
            arrivals.append(Arrival(i, SIZES[i], upload))
        if number not in skipped:
            hub = phase.combine(hub, make_inbox(arrivals, population=len(models)))
    return hub


# 1
@pytest.mark.parametrize("name", ["mlp", "lenet5", "vgg11"])
def test_permuted_copies_fuse_to_the_same_function(plain_chain, name):
    one = plain_chain(name)
    fused = fuse(one, FedMA(max_growth=0, sweeps=1), one.permuted(2))["params"]
    assert {n: v.shape for n, v in fused.items()} == {n: v.shape for n, v in one.params.items()}
    assert_close(one(fused), one(one.params), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_permuted_copies_fuse_to_the_same_function_where_layers_may_grow(plain_chain, name):
    """Few new units are wanted where gamma is small; those that come change nothing."""
    one = plain_chain(name)
    fused = fuse(one, FedMA(gamma=1e-3), one.permuted(3))["params"]
    assert_close(one(fused), one(one.params), rtol=1e-9, atol=1e-12)


# 2
@pytest.mark.parametrize("algorithm", [FedMA(), FedMA(max_growth=0)])
@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_one_client_is_the_identity(plain_chain, name, algorithm):
    one = plain_chain(name)
    (model,) = one.permuted(1)
    assert_close(fuse(one, algorithm, [model])["params"], model, rtol=0, atol=0)


# 3
@pytest.mark.parametrize("algorithm", [FedMA(), FedMA(max_growth=0), FedMA(fused="map")])
@pytest.mark.parametrize("client", [0, 1])
def test_the_order_of_a_clients_hidden_units_does_not_matter(plain_chain, algorithm, client):
    one = plain_chain("mlp")
    random = torch.Generator().manual_seed(1)
    models = [
        {n: v + 0.1 * torch.randn(v.shape, generator=random, dtype=v.dtype) for n, v in one.params.items()}
        for _ in range(2)
    ]
    moved = list(models)
    other = replace(one, model={"params": models[client], "buffers": {}})
    (moved[client],) = other.permuted(1)
    first, second = (fuse(one, algorithm, some)["params"] for some in (models, moved))
    assert_close(one(first), one(second), rtol=1e-9, atol=1e-12)


def test_the_posterior_mean_shrinks_as_released(plain_chain):
    one = plain_chain("mlp")
    copies = [one.params] * 3
    fused = fuse(one, FedMA(max_growth=0, fused="map", sigma=0.5, sigma0=2.0), copies)["params"]
    *hidden, last = tree.weight_layers(one.params)
    for name in (name for names in hidden for name in names):
        assert_close(fused[name], one.params[name] * (3 / (3 + 0.25 / 4)))
    assert_close({n: fused[n] for n in last}, {n: one.params[n] for n in last})


def test_the_last_layer_is_averaged_by_class(plain_chain):
    one = plain_chain("mlp")
    random = torch.Generator().manual_seed(1)
    models = [dict(one.params) for _ in range(2)]
    for model in models:
        model["head.weight"] = torch.randn(3, 15, generator=random, dtype=torch.float64)
        model["head.bias"] = torch.randn(3, generator=random, dtype=torch.float64)
    fused = fuse(one, FedMA(max_growth=0), models, rows=[[3, 4, 0], [1, 0, 0]])["params"]
    shares = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    for name in ("head.weight", "head.bias"):
        stacked = torch.stack([model[name] for model in models], 1)
        assert_close(fused[name], (shares.reshape(3, 2, *[1] * (stacked.ndim - 2)) * stacked).sum(1))


def test_a_layer_that_nobody_was_heard_of_stays_and_the_model_is_whole(plain_chain):
    """The one before it may have grown."""
    one = plain_chain("mlp")
    random = torch.Generator().manual_seed(1)
    models = [
        {n: torch.randn(v.shape, generator=random, dtype=v.dtype) for n, v in one.params.items()}
        for _ in range(3)
    ]
    grown = fuse(one, FedMA(gamma=1e9), models, skipped=(1,))["params"]
    assert len(grown["body.1.weight"]) > len(one.params["body.1.weight"])
    assert_close(grown["body.3.weight"][:, :20], one.params["body.3.weight"], rtol=0, atol=0)
    assert one(grown).isfinite().all()


def test_a_client_that_missed_an_exchange_is_not_heard_until_the_next_round(plain_chain):
    one = plain_chain("mlp")
    hubs = []
    for tags in ((7, 8), (7, 9)):  # the second client was not heard of the first layer
        algorithm = FedMA(max_growth=0).for_model(one.model)
        phase = algorithm.phases()[1]
        hub = algorithm.init_hub(one.model)
        hub[SENDERS] = {"tag": torch.tensor([7, 8])}
        uploads = [
            {"params": {n: one.params[n] + t for n in ("body.3.weight", "body.3.bias")}, SENDERS: {"tag": t}}
            for t in map(torch.tensor, tags)
        ]
        arrivals = [Arrival(i, 3, upload) for i, upload in enumerate(uploads)]
        hubs.append(phase.combine(hub, make_inbox(arrivals, population=2)))
    both, alone = (hub["params"]["body.3.bias"] - one.params["body.3.bias"] for hub in hubs)
    assert_close(both, torch.full_like(both, 7.5))
    assert_close(alone, torch.full_like(alone, 7.0))
    assert hubs[1][SENDERS]["tag"].tolist() == [7]
    assert hubs[1][SOURCES]["body.3.weight"].shape == (1, 15)


# the matching itself


def brute_force(units, atoms, counts, clients):
    """The gain of every pair by the formulas of the reference, without room for new atoms (sigmas of 1)."""
    gains = np.zeros((len(units), len(atoms)))
    for i, x in enumerate(units):
        for a, (total, count) in enumerate(zip(atoms, counts, strict=True)):
            precision = 1 + count
            gains[i, a] = ((total + x) ** 2).sum() / (precision + 1) - (total**2).sum() / precision
            gains[i, a] += 2 * np.log(count / (clients - count))
    return gains


def test_two_clients_are_matched_as_the_formulas_say():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 4, 3))
    places, count = match([first, second], PRIOR, most=4, sweeps=0)
    gains = brute_force(second, first, np.ones(4), 2)
    best = max(permutations(range(4)), key=lambda order: gains[range(4), order].sum())
    assert (places[0].tolist(), places[1].tolist(), count) == ([0, 1, 2, 3], list(best), 4)


def test_a_unit_like_none_becomes_a_new_one():
    """The gain of a new atom is |x|^2 / 2 + 2 log(gamma / J); that of matching grows with the likeness."""
    first = np.array([[4.0, 0.0], [0.0, 4.0]])
    second = np.array([[0.0, 4.1], [-4.0, 0.0]])
    places, count = match([first, second], PRIOR, most=4, sweeps=5)
    assert (places[1].tolist(), count) == ([1, 2], 3)
    totals, counts = sums([first, second], places, count)
    assert_close(
        torch.from_numpy(totals / counts[:, None]), torch.tensor([[4, 0], [0, 4.05], [-4, 0]]).double()
    )
    assert sources(places, count).tolist() == [[0, 1, 2], [2, 0, 1]]
    places, count = match([first, second], PRIOR, most=2, sweeps=5)
    assert (sorted(places[1].tolist()), count) == ([0, 1], 2)


def test_units_of_a_client_never_share_an_atom_and_none_is_empty():
    random = np.random.default_rng(1)
    units = list(random.normal(size=(6, 10, 3)))
    for most in (10, 13, 60):
        places, count = match(units, PRIOR, most, sweeps=3)
        assert count <= most
        assert all(len(set(own.tolist())) == 10 for own in places)
        assert sums(units, places, count)[1].min() >= 1


# in a federation


@pytest.fixture
def chain(scene):
    """A scene whose model has two hidden layers, told apart from its outputs."""
    return lambda **some: replace(scene(**some), build=lambda: MLP((8, 7)).build((6,), 3))


def widths(hub):
    return [value.shape[1] for name, value in hub["params"].items() if name.endswith("bias")]


def test_layers_that_are_fused_stay_as_they_are_while_others_train(chain):
    """With a weight decay that would move them."""
    seen = []

    class Seeing(Watch):
        def call(self, place, function, given):
            result = function(*given)
            if place.role == "local" and place.exchange == "exchange 1":
                seen.append((given[1]["params"], result[1]["own"], result[0]["params"], given[2]["own"]))
            return result

    where = replace(chain(), executor="sequential")
    simulation = simulate(where, [(Watched(FedMA(max_growth=0), Seeing()), SGD(0.1, 0.5, 0.1))])
    simulation.step(evaluate=False)
    assert len(seen) == 5
    for down, own, upload, before in seen:
        assert {name: torch.equal(own[name], value) for name, value in down.items()} == {
            "body.1.weight": True,
            "body.1.bias": True,
        }
        assert upload.keys() == {"body.3.weight", "body.3.bias"}
        assert all(not torch.equal(own[name], before[name]) for name in own)


def test_a_model_that_grew_is_evaluated_sent_and_counted(chain, play):
    simulation = play(chain(dtype=torch.float32), FedMA(gamma=50.0), 2)
    before = simulation.hub
    assert widths(simulation.hub)[0] > 8
    assert widths(simulation.hub)[1] > 7
    assert widths(simulation.hub)[2] == 3
    record = simulation.step()[0]
    assert np.isfinite(record.scores["test_loss"])
    whole = row_bytes({group: before[group] for group in ("params", "buffers")})["params"]
    hidden = row_bytes({"params": {n: v for n, v in simulation.hub["params"].items() if "body" in n}})[
        "params"
    ]
    assert record.bytes_down["params"] == 5 * (whole + hidden)
    sizes = {n: v[0].numel() for n, v in before["params"].items()}
    grown = [new - old for new, old in zip(widths(simulation.hub), widths(before), strict=True)]
    # A layer goes up with the columns of units that the layer before has gained.
    more = widths(before)[1] * grown[0] + widths(before)[2] * grown[1]
    assert record.bytes_up["params"] == 5 * 4 * (sum(sizes.values()) + more)


def test_growth_is_bounded(chain, play):
    assert widths(play(chain(), FedMA(gamma=50.0, max_growth=2), 3).hub) == [14, 13, 3]
    assert widths(play(chain(), FedMA(gamma=50.0, max_units=9), 3).hub) == [9, 9, 3]
    assert widths(play(chain(), FedMA(max_growth=0), 3).hub) == [8, 7, 3]


def test_up_it_is_fedavgs_bytes_and_a_few_tags(chain, play):
    ours, theirs = (play(chain(), method, 0).step()[0] for method in (FedMA(max_growth=0), FedAvg()))
    assert ours.bytes_up["params"] == theirs.bytes_up["params"]
    assert ours.bytes_up[SENDERS] == 3 * 5 * 8
    assert ours.bytes_up["classes"] == 5 * 3 * 8
    assert ours.messages == 3 * theirs.messages


def test_memories_are_empty_between_rounds(chain, play):
    simulation = play(chain(), FedMA(), 2)
    assert tree.nbytes(simulation.store.load(range(5))) == 0


def test_a_convolutional_model_grows_too(scene, play):
    images = scene(sizes=(4, 3))
    random = torch.Generator().manual_seed(0)
    data = images.dataset
    shaped = replace(
        data,
        inputs=torch.rand(len(data.targets), 1, 28, 28, generator=random),
        test_inputs=torch.rand(len(data.test_targets), 1, 28, 28, generator=random),
    )
    where = replace(images, dataset=shaped, build=lambda: LeNet5().build((1, 28, 28), 3), dtype=torch.float32)
    simulation = play(where, FedMA(max_growth=1), 2)
    shapes = {n: tuple(v.shape[1:]) for n, v in simulation.hub["params"].items() if n.endswith("weight")}
    assert list(shapes.values()) == [(8, 1, 5, 5), (18, 8, 5, 5), (122, 450), (86, 122), (3, 86)]
    assert np.isfinite(simulation.evaluate()[0]["test_loss"])


def test_with_a_contrastive_loss_clients_train_otherwise_from_the_second_round_on(chain, play):
    where = replace(chain(), build=lambda: MLP((8,)).build((6,), 3))
    for rounds, same in ((1, True), (2, False)):
        plain, contrastive = (
            play(where, method, rounds).hub["params"]
            for method in (FedMA(max_growth=0), FedMA(max_growth=0, contrastive=8.0))
        )
        assert all(torch.allclose(plain[name], contrastive[name], rtol=1e-9) for name in plain) is same


@pytest.mark.parametrize(
    ("changes", "algorithm", "reason"),
    [
        ({"topology": Ring()}, FedMA(), "takes a server"),
        ({}, FedMA(contrastive=1.0), "set max_growth to 0"),
        (
            {"build": lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))},
            FedMA(),
            "batch n",
        ),
        ({"problem": Regression()}, FedMA(), "averaged by class"),
        ({}, Clipped(1.0)(FedMA()), "differ in shape"),
        ({}, Until(FedAvg(), 2, FedMA()), "change their shapes"),
    ],
)
def test_it_refuses_what_it_cannot_do(chain, changes, algorithm, reason):
    with pytest.raises(UserError, match=reason):
        simulate(replace(chain(), **changes), [(algorithm, SGD(0.1))])


def test_replicas_are_simulated_one_at_a_time(chain):
    with pytest.raises(UserError, match="one replica at a time"):
        simulate(chain(), [(FedMA(gamma=gamma), SGD(0.1)) for gamma in (1.0, 2.0)])


@pytest.mark.parametrize("changes", [{"gamma": 0.0}, {"sigma": -1.0}, {"max_growth": -1}, {"kappa": -0.5}])
def test_numbers_are_checked(changes):
    with pytest.raises(UserError, match="fedma"):
        FedMA(**changes)


@pytest.mark.parametrize("growth", [0, 2])
def test_it_learns(learned, growth):
    assert learned(FedMA(max_growth=growth), rounds=4, seeds=1).rise > 0.4
