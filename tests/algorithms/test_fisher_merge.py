"""Fisher merging: every coordinate's mean, weighted by Fisher information times the share of the data."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Inbox
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fisher_merge import FisherMerge
from consilience.errors import UserError
from consilience.method import Composed
from consilience.rules.by_data import ByData
from consilience.rules.fisher_merge import FisherWeighted
from consilience.rules.hessian_weighted import HessianWeighted

SIZES = (1, 2, 5)


@pytest.fixture
def uploads():
    """Three clients' models of one layer and its Fisher diagonals, and a layer without."""
    random = torch.Generator().manual_seed(0)
    shapes = {"o.weight": (3, 4, 5), "o.bias": (3, 4), "norm.weight": (3, 4)}
    params = {name: torch.randn(shape, generator=random).double() for name, shape in shapes.items()}
    fisher = {
        name: torch.rand(shapes[name], generator=random).double() + 0.1 for name in ("o.weight", "o.bias")
    }
    return params, fisher


def inbox(params, fisher, sizes=SIZES):
    weights = torch.tensor(sizes, dtype=torch.float64)
    shares = weights / weights.sum()
    return Inbox(
        {"params": params, "importance": fisher}, shares, shares, None, torch.tensor(float(len(sizes)))
    )


def test_it_is_the_formula(uploads):
    params, fisher = uploads
    merged = FisherWeighted().merge({}, inbox(*uploads))
    shares = torch.tensor(SIZES, dtype=torch.float64) / 8
    for name, value in fisher.items():
        weights = shares.view(-1, *[1] * (value.ndim - 1)) * value
        assert_close(merged[name], (weights * params[name]).sum(0) / weights.sum(0), rtol=1e-13, atol=1e-15)
    assert_close(merged["norm.weight"], torch.tensordot(shares, params["norm.weight"], 1))


def test_equal_information_gives_the_mean_by_data(uploads):
    params, fisher = uploads
    equal = {name: value[:1].expand(value.shape) for name, value in fisher.items()}
    averaged = ByData().merge({}, inbox(params, {}))
    assert_close(FisherWeighted().merge({}, inbox(params, equal)), averaged, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("information", [0.0, 1e-13])
def test_what_nobody_knows_is_averaged_by_data(uploads, information):
    params, fisher = uploads
    fisher["o.weight"][:, 1] = information * torch.rand(3, 5, dtype=torch.float64)
    averaged = ByData().merge({}, inbox(params, {}))["o.weight"]
    merged = FisherWeighted().merge({}, inbox(params, fisher))["o.weight"]
    assert_close(merged[1], averaged[1], rtol=1e-13, atol=1e-15)
    assert not torch.isclose(merged[0], averaged[0]).any()


def test_without_a_floor_the_only_client_with_information_decides(uploads):
    params, fisher = uploads
    fisher["o.bias"][0] = fisher["o.bias"][2] = 0
    merged = FisherWeighted(floor=0.0).merge({}, inbox(params, fisher))
    assert_close(merged["o.bias"], params["o.bias"][1], rtol=1e-14, atol=0)


def test_a_common_scale_does_not_count_but_a_clients_own_does(uploads):
    params, fisher = uploads
    rule, usual = FisherWeighted(floor=0.0), FisherWeighted(floor=0.0).merge({}, inbox(*uploads))
    assert_close(rule.merge({}, inbox(params, tree.scale(1e-9, fisher))), usual, rtol=1e-12, atol=1e-14)
    louder = {name: torch.cat((1e6 * value[:1], value[1:])) for name, value in fisher.items()}
    merged = rule.merge({}, inbox(params, louder))
    assert_close(merged["o.bias"], params["o.bias"][0], rtol=1e-3, atol=1e-3)


def test_with_sums_over_samples_it_is_the_unscaled_hessian_weighted_mean(scene, play):
    """A share of the data times a mean over samples is a sum over samples, up to a common factor."""
    summed = HessianWeighted("all", kind="per_sample_sum", norm_scope="none")
    where = scene()
    found = play(where, FisherMerge(floor=0.0), 1).hub["params"]
    assert_close(found, play(where, Composed(rule=summed), 1).hub["params"], rtol=1e-10, atol=1e-13)


def test_messages_that_were_not_received_do_not_count(uploads):
    lost = inbox(*uploads, sizes=(1, 0, 5))
    params, fisher = ({name: value[[0, 2]] for name, value in part.items()} for part in uploads)
    assert_close(FisherWeighted().merge({}, lost), FisherWeighted().merge({}, inbox(params, fisher, (1, 5))))


def test_alone_a_client_keeps_its_model(scene, play):
    alone = scene(sizes=(7,), dtype=torch.float32)
    assert_close(play(alone, FisherMerge(), 1).hub, play(alone, FedAvg(), 1).hub, rtol=0, atol=0)


def test_uniform_weights_leave_data_sizes_out(uploads):
    rule = FisherWeighted(weighting="uniform")
    assert_close(rule.merge({}, inbox(*uploads)), rule.merge({}, inbox(*uploads, sizes=(1, 1, 1))))


@pytest.mark.parametrize("kind", ["per_sample_mean", "true_fisher", "ggn"])
@pytest.mark.parametrize(("layers", "names"), [("output", {"b"}), ("last2", {"a", "b"})])
def test_a_client_sends_the_information_of_the_chosen_layers(kind, layers, names):
    asked = []

    def squared_gradients(model, chosen, which):
        asked.append(which)
        return {name: model["params"][name] for name in chosen}

    shapes = {"first": (2, 2), "norm": (2,), "a": (2, 2), "b": (3, 2)}
    model = {"params": {f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()}}
    client = SimpleNamespace(squared_gradients=squared_gradients)
    sent, kept = FisherWeighted(layers, kind).evidence(client, model, {})
    assert sent["importance"].keys() == {f"{name}.weight" for name in names}
    assert (asked, kept) == ([kind], {})


def test_the_upload_is_the_model_and_the_diagonal(scene, play):
    where = scene(sizes=(7, 3), dtype=torch.float32)
    size = 4 * tree.size_of(play(where, FisherMerge(), 0).world.initial[0]["params"])
    record = play(where, FisherMerge(), 0).step(evaluate=False)[0]
    assert record.bytes_up["params"] == record.bytes_up["importance"] == 2 * size


def test_a_negative_floor_is_refused():
    with pytest.raises(UserError, match="floor must be at least 0"):
        FisherMerge(floor=-1.0)
