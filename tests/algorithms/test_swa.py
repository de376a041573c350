"""SWA: section 4.4 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.swa import SWA
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.learning.solvers import SGD
from consilience.models import MLP
from consilience.rules.by_data import ByData
from consilience.rules.gaussianity import (
    BINS,
    Gaussianity,
    gaussian_mass,
    histogram,
    k_statistics,
    renyi,
)

DISTANCES = ["hos", "renyi0", "renyi0.5", "renyi1", "renyi2"]
SIZES = [1, 2, 5, 3]
CPU = torch.device("cpu")


@pytest.fixture
def models():
    """Four clients' models with a convolution, normalisation and an output layer, skewed weights, float32."""
    random = torch.Generator().manual_seed(0)
    shapes = {
        "conv.weight": (6, 1, 3, 3),
        "norm.weight": (6,),
        "norm.bias": (6,),
        "out.weight": (3, 24),
        "out.bias": (3,),
    }
    return {name: torch.randn(4, *shape, generator=random).exp() - 1 for name, shape in shapes.items()}


@pytest.fixture
def samples():
    return torch.randn(5, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).exp()


# 1
@pytest.mark.parametrize("distance", DISTANCES)
def test_identical_clients_give_that_model_or_as_printed_its_multiple(inbox, models, distance):
    one = {name: value[0] for name, value in models.items()}
    heard = inbox({"params": {name: value.expand(4, *value.shape) for name, value in one.items()}}, SIZES)
    assert_close(Gaussianity(distance).merge({}, heard), one, rtol=0, atol=0)
    printed = Gaussianity(distance, "as_printed").merge({}, heard)
    for name, value in one.items():
        assert_close(printed[name], value if name.startswith("norm") else 4 * value)


# 2
def test_k_statistics_are_those_of_scipy(samples):
    third, fourth = k_statistics(samples)
    assert_close(third, torch.tensor([stats.kstat(row, 3) for row in samples.numpy()], dtype=torch.float64))
    assert_close(fourth, torch.tensor([stats.kstat(row, 4) for row in samples.numpy()], dtype=torch.float64))


# 3
@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize(
    ("distance", "sign"), [*((distance, "abs") for distance in DISTANCES), ("hos", "clip")]
)
def test_weights_are_a_convex_combination(samples, distance, standardise, sign):
    rule = Gaussianity(distance, sign=sign, standardise=standardise)
    weights = rule.coefficients(samples, torch.full((5,), 0.2, dtype=torch.float64))
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1)
    assert weights.std() > 0 or distance == "renyi0"


# 4
@pytest.mark.parametrize("factor", [0.01, 0.9, 1.1, 20.0])
def test_the_distance_grows_with_the_seventh_power_of_the_scale(samples, factor):
    def raw(values):
        third, fourth = k_statistics(values)
        return third * fourth

    assert_close(raw(factor * samples), factor**7 * raw(samples), rtol=1e-9, atol=0)


# 4
@pytest.mark.parametrize("distance", ["hos", "renyi1"])
def test_standardised_the_scale_of_a_client_does_not_matter(samples, distance):
    equal = torch.full((5,), 0.2, dtype=torch.float64)
    scaled = samples * torch.tensor([0.01, 0.5, 1.0, 3.0, 50.0], dtype=torch.float64)[:, None]
    weights = [
        Gaussianity(distance, standardise=True).coefficients(rows, equal) for rows in (samples, scaled)
    ]
    assert_close(*weights, rtol=1e-6, atol=1e-9)


# 5
@pytest.mark.parametrize("order", [0.5, 1, 2])
def test_a_gaussian_has_no_divergence_from_itself(order):
    assert abs(renyi(gaussian_mass(CPU), gaussian_mass(CPU), order).item()) < 1e-12


# 5
@given(st.lists(st.integers(0, 20), min_size=BINS, max_size=BINS).filter(any))
def test_the_divergence_does_not_fall_with_its_order(counts):
    p = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    ordered = [renyi(p, gaussian_mass(CPU), order).item() for order in (0, 0.5, 1, 2)]
    assert all(low <= high + 1e-9 for low, high in pairwise(ordered))


# 6
@pytest.mark.parametrize("form", ["normalised", "as_printed"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_one_client_is_the_identity(inbox, models, form, distance):
    alone = {name: value[:1] for name, value in models.items()}
    merged = Gaussianity(distance, form).merge({}, inbox({"params": alone}, [4]))
    assert_close(merged, {name: value[0] for name, value in alone.items()}, rtol=0, atol=0)


def test_data_sizes_are_ignored_in_weighed_layers_alone(inbox, models):
    merged = [Gaussianity().merge({}, inbox({"params": models}, sizes)) for sizes in (SIZES, [9, 1, 1, 2])]
    same = {name for name in models if torch.equal(merged[0][name], merged[1][name])}
    assert same == {"conv.weight", "out.weight", "out.bias"}


def test_a_bias_has_its_layers_coefficients(inbox, models):
    heard = inbox({"params": models}, SIZES)
    weights = Gaussianity().coefficients(models["out.weight"].flatten(1), heard.weights)
    merged = Gaussianity().merge({}, heard)
    assert_close(merged["out.bias"].double(), weights @ models["out.bias"].double(), rtol=1e-6, atol=1e-6)


def test_normalisation_layers_and_buffers_are_fedavgs(scene, play):
    where = scene(sizes=(7, 3, 10), module="normalised")
    weighed, averaged = play(where, SWA(), 1).hub, play(where, FedAvg(), 1).hub
    assert_close(weighed["buffers"], averaged["buffers"], rtol=0, atol=0)
    same = {n for n, value in weighed["params"].items() if torch.equal(value, averaged["params"][n])}
    same -= {"0.bias"}  # without gradient: the normalisation after it takes it out
    assert same == {"1.weight", "1.bias"}


@pytest.mark.parametrize("distance", DISTANCES)
def test_tensors_with_fewer_than_four_entries_are_fedavgs(inbox, models, distance):
    tiny = {"small.weight": models["out.weight"][:, :1, :3], "small.bias": models["out.bias"]}
    heard = inbox({"params": tiny}, SIZES)
    assert_close(Gaussianity(distance).merge({}, heard), ByData().merge({}, heard), rtol=0, atol=0)


def test_four_entries_are_enough(inbox, models):
    small = {"small.weight": models["out.weight"][:, :2, :2]}
    heard = inbox({"params": small}, SIZES)
    assert not torch.equal(
        Gaussianity().merge({}, heard)["small.weight"], ByData().merge({}, heard)["small.weight"]
    )


@pytest.mark.parametrize("form", ["normalised", "as_printed"])
def test_layers_without_any_distance_are_fedavgs(inbox, form):
    constant = {"a.weight": torch.arange(4.0)[:, None, None].expand(4, 3, 3)}
    heard = inbox({"params": constant}, SIZES)
    assert_close(Gaussianity(form=form).merge({}, heard), ByData().merge({}, heard), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["normalised", "as_printed"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_messages_that_were_not_received_do_not_count(inbox, models, form, distance):
    rule = Gaussianity(distance, form)
    some = {name: value[:3] for name, value in models.items()}
    merged = (
        rule.merge({}, inbox({"params": models}, [1, 2, 5, 0])),
        rule.merge({}, inbox({"params": some}, [1, 2, 5])),
    )
    assert_close(*merged)


@pytest.mark.parametrize(
    ("sign", "expected"), [("abs", [1.0, 1.0]), ("clip", [1.0, 0.0]), ("raw", [1.0, -1.0])]
)
def test_a_negative_product_of_skewness_and_kurtosis(sign, expected):
    skewed = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.3], dtype=torch.float64)
    pair = torch.stack([skewed, -skewed])  # reflection turns the sign of k3 alone
    found = Gaussianity(form="as_printed", sign=sign).coefficients(pair, torch.tensor([0.5, 0.5]))
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("form", "products", "expected"),
    [
        ("normalised", (-1, -1, 3), (-1.0, -1.0, 3.0)),
        ("normalised", (-1, -1, 1), None),
        ("normalised", (-1, -1, -3), None),
        ("as_printed", (-1, -1, 2), (-0.5, -0.5, 1.0)),
        ("as_printed", (-1, -1, -3), None),
    ],
)
def test_raw_weights_are_those_of_the_data_where_the_sum_or_the_largest_is_not_positive(
    form, products, expected
):
    """Three clients, whose k3 k4 are in proportion to the products."""
    skewed = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.3], dtype=torch.float64)
    layer = torch.stack([math.copysign(abs(one) ** (1 / 7), one) * skewed for one in products])
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    found = Gaussianity(form=form, sign="raw").coefficients(layer, shares)
    assert_close(found, torch.tensor(expected or shares.tolist(), dtype=torch.float64))


def test_histograms_and_the_gaussian_have_mass_one(samples):
    masses = histogram(10 * (samples - 2))  # partly out of range
    assert masses.shape == (5, BINS)
    assert_close(masses.sum(-1), torch.ones(5, dtype=torch.float64))
    assert gaussian_mass(CPU).sum().item() == pytest.approx(1, abs=1e-14)
    assert gaussian_mass(CPU).min() > 0


def test_the_bins_are_right_and_the_end_bins_take_what_lies_outside():
    values = torch.tensor([[-99.0, -4.0, 4.0, 99.0, 0.0, 0.1249, 0.125, -1e-9]], dtype=torch.float64)
    mass = 8 * histogram(values)[0]
    expected = {0: 2, 31: 1, 32: 2, 33: 1, 63: 2}
    assert {bin_number: int(count) for bin_number, count in enumerate(mass.tolist()) if count} == expected
    normal = stats.norm.cdf([-3.875, 0.0, 0.125])
    assert gaussian_mass(CPU)[0].item() == pytest.approx(normal[0], rel=1e-6)
    assert gaussian_mass(CPU)[32].item() == pytest.approx(normal[2] - normal[1], rel=1e-9)


def test_bytes_are_exactly_fedavgs(scene, play):
    records = [play(scene(), method, 0).step(evaluate=False)[0] for method in (SWA(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_down == records[1].bytes_down


@pytest.fixture
def featured(scene):
    """A scene whose model tells its features from its logits."""
    return lambda dtype=torch.float64: replace(scene(dtype=dtype), build=lambda: MLP((8,)).build((6,), 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_contrastive_loss_nothing_is_added(featured, play, dtype):
    plain, zero = (play(featured(dtype), method) for method in (SWA(), SWA(contrastive=0.0)))
    assert_close(zero.hub, plain.hub, rtol=0, atol=0)
    assert zero.store.load([0]) == plain.store.load([0]) == {}
    assert SWA(contrastive=0.0).parts() == SWA().parts()


def test_with_a_contrastive_loss_clients_train_otherwise_and_are_merged_alike(featured, play, inbox):
    for rounds, same in ((1, True), (2, False)):
        plain, contrastive = (play(featured(), method, rounds) for method in (SWA(), SWA(contrastive=8.0)))
        found = [tree.index(simulation.hub, 0)["params"] for simulation in (plain, contrastive)]
        assert all(torch.equal(value, found[1][name]) for name, value in found[0].items()) is same
        trained = contrastive.store.load(range(5))["previous0_params"]
        merged = Gaussianity().merge({}, inbox({"params": trained}, [7, 3, 10, 1, 5]))
        assert_close(found[1], merged, rtol=1e-12, atol=1e-14)


def test_the_weight_of_the_contrastive_loss_can_be_swept(featured):
    values = (0.0, 3.0, 8.0)
    together, *alone = (
        simulate(featured(), [(SWA(contrastive=value), SGD(0.1)) for value in some])
        for some in (values, *((value,) for value in values))
    )
    for simulation in (together, *alone):
        for _ in range(3):
            simulation.step(evaluate=False)
    for number, simulation in enumerate(alone):
        pair = (tree.index(one.hub, place)["params"] for one, place in ((together, number), (simulation, 0)))
        assert_close(*pair, rtol=1e-10, atol=1e-12)


def test_bytes_with_a_contrastive_loss_are_fedavgs(featured, play):
    records = [play(featured(), method, 0).step()[0] for method in (SWA(contrastive=8.0), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_down == records[1].bytes_down


def test_a_negative_contrastive_loss_is_refused():
    with pytest.raises(UserError, match=r"mu must be at least 0, not -1\.0"):
        SWA(contrastive=-1.0)
