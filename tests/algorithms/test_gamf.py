"""GAMF: section 6.2 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.gamf import GAMF
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.models import MLP
from consilience.objectives.proximal import Proximal
from consilience.rules.base import Rule
from consilience.rules.graduated_assignment import STILL, GraduatedAssignment, Layers, distances, sinkhorn

SIZES = [5, 9, 2]


def merge(inbox, network, models, rule=None, sizes=None):
    """What the rule makes of some models."""
    stacked = {name: torch.stack([model[name] for model in models]) for name in network.params}
    heard = inbox({"params": stacked}, sizes or SIZES[: len(models)])
    return (rule or GraduatedAssignment()).merge(network.params, heard)


def spread(network, scale, count=3):
    """Models around a network's, by noise of some scale."""
    random = torch.Generator().manual_seed(1)
    return [
        {
            n: v + scale * torch.randn(v.shape, generator=random, dtype=v.dtype)
            for n, v in network.params.items()
        }
        for _ in range(count)
    ]


# 1
@pytest.mark.parametrize("norm", [2, 4])
@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_permuted_copies_fuse_to_the_same_function(plain_chain, inbox, name, norm):
    one = plain_chain(name)
    fused = merge(inbox, one, one.permuted(3), GraduatedAssignment(norm=norm))
    assert_close(one(fused), one(one.params), rtol=1e-9, atol=1e-12)


# 1
def test_permuted_copies_of_vgg11_fuse_to_the_same_function(plain_chain, inbox):
    """In float32, with the cheaper distance and few sweeps."""
    one = plain_chain("vgg11-gamf", torch.float32)
    fused = merge(inbox, one, one.permuted(2), GraduatedAssignment(sweeps=2, norm=2))
    assert_close(one(fused), one(one.params), rtol=1e-4, atol=1e-6)


# 2
def test_identical_clients_give_that_model_and_one_order(plain_chain, inbox):
    one = plain_chain("lenet5")
    (model,) = one.permuted(1)
    assert_close(merge(inbox, one, [model] * 3), model, rtol=1e-12, atol=1e-15)
    places = GraduatedAssignment().match([Layers.of(model)] * 3)
    assert all(torch.equal(own, places[0][i]) for client in places for i, own in enumerate(client))


# 3
def test_all_matchings_are_permutations(plain_chain):
    one = plain_chain("mlp")
    places = GraduatedAssignment(sweeps=3).match([Layers.of(model) for model in spread(one, 5.0)])
    for own in places:
        assert [sorted(layer.tolist()) for layer in own] == [list(range(20)), list(range(15))]


# 3
@pytest.mark.parametrize("scale", [0.1, 10.0, 5000.0])
def test_rows_and_columns_sum_to_one(scale):
    gains = scale * torch.rand(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    soft = sinkhorn(gains, 2000)
    assert (soft >= 0).all()
    for axis in (0, 1):
        assert_close(soft.sum(axis), torch.ones(12, dtype=torch.float64), rtol=0, atol=STILL)


def test_sinkhorn_only_scales_rows_and_columns():
    gains = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rest = sinkhorn(gains, 200).log() - gains
    rest = rest - rest[:1] - rest[:, :1] + rest[0, 0]
    assert_close(rest, torch.zeros_like(rest), rtol=0, atol=1e-12)


# 4
def test_one_client_is_the_identity(plain_chain, inbox):
    one = plain_chain("lenet5")
    (model,) = one.permuted(1)
    assert_close(merge(inbox, one, [model]), model, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [2, 4])
def test_distances_are_those_of_torch(norm):
    random = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 7, 5, generator=random, dtype=torch.float64)
    assert_close(distances(left, right, norm), torch.cdist(left, right, p=norm))


def test_models_that_are_close_are_averaged_by_data(plain_chain, inbox):
    one = plain_chain("mlp")
    models = spread(one, 0.01)
    shares = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    expected = {n: sum(s * m[n] for s, m in zip(shares, models, strict=True)) for n in one.params}
    assert_close(merge(inbox, one, models), expected)


@pytest.mark.parametrize("client", [0, 1])
def test_the_order_of_a_clients_hidden_units_does_not_matter(plain_chain, inbox, client):
    one = plain_chain("mlp")
    models = spread(one, 0.05)
    moved = list(models)
    (moved[client],) = replace(one, model={"params": models[client], "buffers": {}}).permuted(1)
    first, second = (one(merge(inbox, one, some)) for some in (models, moved))
    assert_close(first, second, rtol=1e-9, atol=1e-12)


def test_messages_that_were_not_received_do_not_count(plain_chain, inbox):
    one = plain_chain("mlp")
    models = one.permuted(2)
    lost = {name: torch.full_like(value, torch.nan) for name, value in one.params.items()}
    found = merge(inbox, one, [models[0], lost, models[1]], sizes=[5, 0, 2])
    assert_close(found, merge(inbox, one, models, sizes=[5, 2]), rtol=0, atol=0)


@pytest.fixture
def featured(scene):
    """A scene whose model tells its features from its logits."""
    return lambda **some: replace(scene(**some), build=lambda: MLP((8,)).build((6,), 3))


def test_bytes_are_exactly_fedavgs(featured, play):
    for method in (GAMF(), GAMF(contrastive=8.0)):
        ours, theirs = (play(featured(), one, 0).step(evaluate=False)[0] for one in (method, FedAvg()))
        assert ours.bytes_up == theirs.bytes_up
        assert ours.bytes_down == theirs.bytes_down


def test_with_a_contrastive_loss_clients_train_otherwise_and_are_merged_alike(featured, play, inbox):
    for rounds, same in ((1, True), (2, False)):
        plain, contrastive = (play(featured(), method, rounds) for method in (GAMF(), GAMF(contrastive=8.0)))
        found = [tree.index(simulation.hub, 0)["params"] for simulation in (plain, contrastive)]
        assert all(torch.equal(value, found[1][name]) for name, value in found[0].items()) is same
        trained = contrastive.store.load(range(5))["previous0_params"]
        heard = inbox({"params": trained}, [7, 3, 10, 1, 5])
        merged = GraduatedAssignment().merge(found[1], heard)
        assert_close(found[1], merged, rtol=1e-12, atol=1e-14)


def test_seeds_and_swept_numbers_share_a_computation(featured):
    values = (0.0, 3.0)
    together, *alone = (
        simulate(featured(), [(GAMF(contrastive=value), SGD(0.1)) for value in some])
        for some in (values, *((value,) for value in values))
    )
    for simulation in (together, *alone):
        for _ in range(3):
            simulation.step(evaluate=False)
    for number, simulation in enumerate(alone):
        pair = (tree.index(one.hub, place)["params"] for one, place in ((together, number), (simulation, 0)))
        assert_close(*pair, rtol=1e-10, atol=1e-12)


def test_the_rule_goes_with_other_parts(featured, play):
    simulation = play(featured(), Composed(Proximal(mu=0.1), GraduatedAssignment(hot=0.1)), 2)
    assert all(value.isfinite().all() for value in simulation.hub["params"].values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topology": Ring()}, "matched at a server"),
        ({"build": lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))}, "LayerNorm"),
    ],
)
def test_it_refuses_what_it_cannot_do(featured, changes, reason):
    with pytest.raises(UserError, match=reason):
        simulate(replace(featured(), **changes), [(GAMF(), SGD(0.1))])


def test_any_rule_that_looks_at_numbers_is_for_servers(featured, play):
    class First(Rule):
        name = "first"
        ordinary = True

        def merge(self, old, inbox):
            heaviest = int(inbox.weights.argmax())  # which no `vmap` would allow
            return {name: value[heaviest] for name, value in inbox["params"].items()}

    one = play(featured(), Composed(rule=First()), 4)
    assert all(value.isfinite().all() for value in one.hub["params"].values())
    with pytest.raises(UserError, match="takes a server"):
        simulate(replace(featured(), topology=Ring()), [(Composed(rule=First()), SGD(0.1))])


@pytest.mark.parametrize("changes", [{"sweeps": 0}, {"hot": 0.0}, {"cold": -1.0}, {"scalings": 0}])
def test_numbers_are_checked(changes):
    with pytest.raises(UserError, match="graduated_assignment"):
        GraduatedAssignment(**changes)


def test_it_learns(learned):
    found = learned(GAMF(sweeps=10), rounds=4, seeds=1)
    assert found.rise > 0.4
    assert found.behind < 0.1
