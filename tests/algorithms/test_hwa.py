"""HWA: section 4.2 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.hwa import HWA
from consilience.data.dataset import Dataset
from consilience.models import MLP
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted

SIZES = [1, 2, 5]


@pytest.fixture
def uploads():
    """Three clients' models of one layer, float32."""
    random = torch.Generator().manual_seed(0)
    return {"o.weight": torch.randn(3, 4, 5, generator=random), "o.bias": torch.randn(3, 4, generator=random)}


def curvature_like(params, seed=1):
    random = torch.Generator().manual_seed(seed)
    return {name: torch.rand(value.shape, generator=random) + 0.1 for name, value in params.items()}


def evidence(rule, diagonals):
    """What clients with these curvature diagonals [clients, ...] send, stacked."""
    sent = []
    for k in range(len(next(iter(diagonals.values())))):
        own = {name: value[k] for name, value in diagonals.items()}
        client = SimpleNamespace(squared_gradients=lambda model, names, kind, own=own: own)
        sent.append(rule.evidence(client, {"params": own, "buffers": {}}, {})[0])
    return tree.stack(sent)["importance"]


def merge(inbox, params, importance, form="normalised", sizes=SIZES):
    messages = {"params": params, "importance": importance}
    return HessianWeighted(form=form).merge({}, inbox(messages, sizes))


# 1
def test_equal_curvature_gives_the_uniform_mean_whatever_the_data_sizes(inbox, uploads):
    equal = {name: value[:1].expand(value.shape) for name, value in curvature_like(uploads).items()}
    uniform = {name: value.double().mean(0).float() for name, value in uploads.items()}
    assert_close(merge(inbox, uploads, equal), uniform, rtol=1e-6, atol=1e-7)
    assert_close(merge(inbox, uploads, equal), ByData().merge({}, inbox({"params": uploads}, [1, 1, 1])))


# 2
@pytest.mark.parametrize("scope", ["layer", "tensor", "model"])
@pytest.mark.parametrize("form", ["normalised", "client_split", "as_printed"])
def test_a_clients_curvature_may_have_any_scale(inbox, uploads, scope, form):
    rule = HessianWeighted(form=form, norm_scope=scope)
    diagonals = {name: value.double() for name, value in curvature_like(uploads).items()}
    factors = torch.tensor([1e-12, 1.0, 1e9], dtype=torch.float64)
    scaled = {name: value * factors.view(-1, *[1] * (value.ndim - 1)) for name, value in diagonals.items()}
    params = {name: value.double() for name, value in uploads.items()}
    merged = [
        rule.merge({}, inbox({"params": params, "importance": evidence(rule, d)}, SIZES))
        for d in (diagonals, scaled)
    ]
    assert_close(*merged, rtol=1e-12, atol=1e-14)


# 3
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["normalised", "client_split", "as_printed"])
def test_without_any_curvature_it_is_fedavg_bit_for_bit(inbox, uploads, dtype, form):
    params = {name: value.to(dtype) for name, value in uploads.items()}
    averaged = ByData().merge({}, inbox({"params": params}, SIZES))
    assert_close(merge(inbox, params, tree.zeros_like(params), form), averaged, rtol=0, atol=0)


# 4
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_only_client_with_curvature_decides_a_coordinate_exactly(inbox, uploads, dtype):
    params = {name: value.to(dtype) for name, value in uploads.items()}
    importance = {name: value.to(dtype) for name, value in curvature_like(uploads).items()}
    importance["o.bias"][0, 1] = importance["o.bias"][2, 1] = 0
    merged = merge(inbox, params, importance)
    # e * w / e rounds twice in float64; the cast to float32 takes that away.
    assert merged["o.bias"][1].item() == pytest.approx(
        params["o.bias"][1, 1].item(), rel=0 if dtype == torch.float32 else 1e-15, abs=0
    )


# 5
@pytest.mark.parametrize("form", ["normalised", "client_split"])
def test_every_coordinate_lies_between_the_clients(inbox, uploads, form):
    importance = curvature_like(uploads)
    importance["o.weight"][1] = importance["o.bias"][1] = 0
    importance["o.weight"][:, 0] = 0
    merged = merge(inbox, uploads, importance, form)
    for name, value in uploads.items():
        assert ((merged[name] >= value.amin(0)) & (merged[name] <= value.amax(0))).all()


# 6
def test_alone_normalised_is_the_identity_and_as_printed_is_not(scene, play):
    alone = scene(sizes=(7,), dtype=torch.float32)
    trained = play(alone, FedAvg(), 1).hub
    assert_close(play(alone, HWA(), 1).hub, trained, rtol=0, atol=0)
    shrunk = play(alone, HWA(form="as_printed"), 1).hub["params"]["2.weight"]
    assert shrunk.norm() < 0.5 * trained["params"]["2.weight"].norm()


# 7
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("layers", "hidden"),
    [
        ("output", ("0.weight", "0.bias", "2.weight", "2.bias")),
        ("last2", ("0.weight", "0.bias")),
        ("all", ()),
    ],
)
def test_hidden_layers_are_fedavgs_bit_for_bit(scene, play, dtype, layers, hidden):
    where = scene(module="deep", dtype=dtype)
    weighed, averaged = play(where, HWA(layers), 1).hub["params"], play(where, FedAvg(), 1).hub["params"]
    same = {name for name in weighed if torch.equal(weighed[name], averaged[name])}
    assert same == set(hidden)


def test_normalisation_layers_and_buffers_are_fedavgs_even_when_all_layers_are_weighed(scene, play):
    where = scene(sizes=(7, 3, 10), module="normalised")
    weighed, averaged = play(where, HWA("all"), 1).hub, play(where, FedAvg(), 1).hub
    assert_close(weighed["buffers"], averaged["buffers"], rtol=0, atol=0)
    same = {n for n, value in weighed["params"].items() if torch.equal(value, averaged["params"][n])}
    same -= {"0.bias"}  # without gradient: the normalisation after it takes it out
    assert same == {"1.weight", "1.bias"}


@pytest.mark.parametrize(("layers", "extra"), [("output", 2_010), ("last2", 42_210), ("all", 199_210)])
def test_the_upload_is_the_model_and_the_curvature_of_the_chosen_layers(scene, play, layers, extra):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(4, 784)).astype(np.float32)
    data = Dataset.from_arrays("grey", inputs, np.arange(4), inputs, np.arange(4), classes=10)
    where = scene(sizes=(2, 2), epochs=1, dtype=torch.float32)
    where = replace(where, dataset=data, build=lambda: MLP().build((1, 28, 28), 10))
    record = play(where, HWA(layers), 0).step(evaluate=False)[0]
    assert record.bytes_up["params"] == 2 * 4 * 199_210
    assert record.bytes_up["importance"] == 2 * 4 * extra
    assert record.bytes_down == play(where, FedAvg(), 0).step(evaluate=False)[0].bytes_down


def test_nothing_is_kept_between_rounds(scene, play):
    simulation = play(scene(), HWA())
    assert simulation.store.load([0, 1]) == {}
    assert simulation.hub.keys() == {"params", "buffers"}


def test_larger_curvature_means_larger_weight(inbox):
    params = {"o.weight": torch.tensor([[[0.0]], [[1.0]]])}
    importance = {"o.weight": torch.tensor([[[1.0]], [[3.0]]])}
    assert merge(inbox, params, importance, sizes=[100, 1])["o.weight"].item() == 0.75


def test_curvature_is_that_of_the_trained_model_on_the_training_data(scene, play):
    """One output layer by hand: r = D / |D| with D = sum of squared sample gradients, then eq. 6 and 7."""
    where = scene(sizes=(5, 3), module="logistic")
    trained, importance = [], []
    for client in range(2):
        part = where.partitions[0]
        shards = tuple(shard if k == client else shard[:0] for k, shard in enumerate(part.shards))
        alone = replace(where, partitions={0: replace(part, shards=shards)})
        model = tree.index(play(alone, FedAvg(), 1).hub, 0)["params"]
        inputs, targets = (
            t[torch.from_numpy(shards[client])] for t in (where.dataset.inputs, where.dataset.targets)
        )
        delta = (inputs @ model["weight"].T + model["bias"]).softmax(-1) - torch.nn.functional.one_hot(
            targets, 3
        )
        diagonal = torch.cat([(delta**2).T @ inputs**2, (delta**2).sum(0)[:, None]], 1)
        trained.append(torch.cat([model["weight"], model["bias"][:, None]], 1))
        importance.append(diagonal / diagonal.norm())
    expected = sum(r * w for r, w in zip(importance, trained, strict=True)) / sum(importance)
    merged = tree.index(play(where, HWA(), 1).hub, 0)["params"]
    assert_close(torch.cat([merged["weight"], merged["bias"][:, None]], 1), expected, rtol=1e-12, atol=1e-14)
