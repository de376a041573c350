"""Averages by Kronecker-factored curvature: against dense solves, and where they must be plain ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Inbox
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.kfac_weighted import KFACWeighted
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning import kronecker
from consilience.learning.kronecker import INPUTS, OUTPUTS
from consilience.learning.task import Task
from consilience.models import MLP
from consilience.rules import kfac_weighted
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.rules.kfac_weighted import KroneckerWeighted

SIZES = (1, 2, 5)
OUT, IN = 3, 5  # with the bias
EXACT = {"damping": 0.0, "iterations": 60, "tolerance": 0.0}
"""Options of the rule with which conjugate gradients end at the solution."""


def moments(generator, size, rank):
    """[clients, size, size] random second moments of a rank."""
    rows = torch.randn(len(SIZES), rank, size, generator=generator, dtype=torch.float64)
    return rows.mT @ rows


@pytest.fixture
def uploads():
    """Three clients' models and factors of one layer, and a layer without."""
    random = torch.Generator().manual_seed(0)
    shapes = {"o.weight": (3, OUT, IN - 1), "o.bias": (3, OUT), "norm.weight": (3, 4)}
    params = {
        name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()
    }
    return params, moments(random, IN, 2 * IN), moments(random, OUT, 2 * OUT)


def inbox(params, inputs, outputs, sizes=SIZES, node=None):
    weights = torch.tensor(sizes, dtype=torch.float64)
    messages = {
        "params": params,
        INPUTS: {"o.weight": kronecker.packed(inputs)},
        OUTPUTS: {"o.weight": kronecker.packed(outputs)},
    }
    shares = weights / weights.sum()
    own = None if node is None else tree.index(messages, node)
    return Inbox(messages, shares, shares, own, torch.tensor(float(len(sizes))))


def merged_layer(heard, **options):
    return kronecker.matrix(KroneckerWeighted(**options).merge({}, heard), "o.weight")


def dense_solution(params, inputs, outputs, counts, damping=0.0):
    """The merged layer by one dense solve; column-wise vectors, so that B W A is (A (x) B) vec(W)."""
    layers = kronecker.matrix(params, "o.weight", 1)
    matrices = [c * torch.kron(a, b) for c, a, b in zip(counts, inputs, outputs, strict=True)]
    total = torch.stack(matrices).sum(0)
    right = sum(m @ layer.T.reshape(-1) for m, layer in zip(matrices, layers, strict=True))
    extra = damping * total.diagonal().mean()
    shares = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    mean = torch.tensordot(shares, layers, 1).T.reshape(-1)
    whole = total + extra * torch.eye(len(total), dtype=torch.float64)
    return torch.linalg.solve(whole, right + extra * mean).reshape(IN, OUT).T


@pytest.mark.parametrize("node", [None, 1])
@pytest.mark.parametrize("damping", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("scope", ["layer", "none"])
def test_it_is_the_dense_solution(uploads, node, damping, scope):
    heard = inbox(*uploads, node=node)
    found = merged_layer(heard, **{**EXACT, "damping": damping, "norm_scope": scope})
    counts = torch.ones(3) if scope == "layer" else heard.weights
    assert_close(found, dense_solution(*uploads, counts, damping), rtol=1e-8, atol=1e-9)


def test_other_parameters_are_averaged_by_data(uploads):
    heard = inbox(*uploads)
    averaged = ByData().merge({}, heard)["norm.weight"]
    assert_close(KroneckerWeighted().merge({}, heard)["norm.weight"], averaged, rtol=0, atol=0)


@pytest.mark.parametrize("rank", [1, 2 * IN])
def test_equal_factors_give_the_plain_mean(uploads, rank):
    """In the directions that have curvature: about others the equations say nothing."""
    params, _, outputs = uploads
    one = moments(torch.Generator().manual_seed(1), IN, rank)[:1].expand(3, IN, IN)
    heard = inbox(params, one, outputs[:1].expand(3, OUT, OUT))
    found, layers = merged_layer(heard, **EXACT), kronecker.matrix(params, "o.weight", 1)
    curved = torch.linalg.pinv(one[0], rtol=1e-10) @ one[0]
    assert_close(found @ curved, layers.mean(0) @ curved, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_diagonal_factors_give_the_mean_of_coordinates(uploads, norm):
    params, inputs, outputs = uploads
    a, b = (value.diagonal(dim1=1, dim2=2) for value in (inputs, outputs))
    counts = torch.tensor(SIZES if norm == "none" else (1, 1, 1), dtype=torch.float64)
    diagonals = counts[:, None, None] * b[:, :, None] * a[:, None]
    heard = inbox(params, torch.diag_embed(a), torch.diag_embed(b))
    found = merged_layer(heard, **{**EXACT, "norm_scope": norm})
    importance = {"o.weight": diagonals[..., :-1], "o.bias": diagonals[..., -1]}
    messages = {"params": params, "importance": importance}
    expected = HessianWeighted(norm_scope="none").merge({}, replace(heard, messages=messages))
    assert_close(found, kronecker.matrix(expected, "o.weight"), rtol=1e-10, atol=1e-11)


def test_equal_models_are_a_fixed_point(uploads):
    params, *factors = uploads
    equal = {name: value[:1].expand(value.shape) for name, value in params.items()}
    merged = KroneckerWeighted(**EXACT).merge({}, inbox(equal, *factors))
    assert_close(merged, {name: value[0] for name, value in params.items()}, rtol=1e-12, atol=1e-13)


def test_without_any_curvature_it_is_the_mean_by_data(uploads):
    params, inputs, outputs = uploads
    heard = inbox(params, torch.zeros_like(inputs), outputs)
    assert_close(KroneckerWeighted().merge({}, heard), ByData().merge({}, heard), rtol=1e-15, atol=1e-15)


def test_much_damping_is_the_mean_by_data(uploads):
    heard = inbox(*uploads)
    merged = KroneckerWeighted(damping=1e12).merge({}, heard)
    assert_close(merged, ByData().merge({}, heard), rtol=1e-9, atol=1e-10)


def sent(rule, factors):
    """What clients with these factors [clients, ...] send, stacked."""
    module = nn.Sequential()
    module.add_module("o", nn.Linear(IN - 1, OUT))
    task = Task(module, torch.float64)
    model = task.weights_of(module)
    messages = []
    for inputs, outputs in zip(*factors, strict=True):
        own = {INPUTS: {"o.weight": inputs}, OUTPUTS: {"o.weight": outputs}}
        client = SimpleNamespace(task=task, kronecker_factors=lambda *_, own=own: own)
        messages.append(rule.evidence(client, model, {})[0])
    return tree.stack(messages)


def test_a_clients_curvature_may_have_any_scale(uploads):
    params, inputs, outputs = uploads
    rule = KroneckerWeighted(iterations=60)
    factors = torch.tensor([1e-12, 1.0, 1e9], dtype=torch.float64)[:, None, None]
    merged = []
    for scaled in ((inputs, outputs), (inputs * factors, outputs), (inputs, outputs * factors.flip(0))):
        heard = inbox(*uploads)
        merged.append(rule.merge({}, replace(heard, messages={"params": params, **sent(rule, scaled)})))
    assert_close(merged[1], merged[0], rtol=1e-8, atol=1e-9)
    assert_close(merged[2], merged[0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("scope", "norm"), [("layer", 1.0), ("none", 2.0)])
def test_triangles_are_sent_with_unit_norm_or_as_they_are(scope, norm):
    message = sent(
        KroneckerWeighted(norm_scope=scope), (2 * torch.eye(IN)[None] / IN**0.5, torch.eye(OUT)[None])
    )
    assert message.keys() == {INPUTS, OUTPUTS}
    whole = kronecker.unpacked(message[INPUTS]["o.weight"], IN)
    assert whole.norm().item() == pytest.approx(norm)


@pytest.mark.parametrize("node", [None, 2])
def test_messages_that_were_not_received_do_not_count(uploads, node):
    lost = inbox(*uploads, sizes=(1, 0, 5), node=node)
    params, inputs, outputs = uploads
    some = ({name: value[[0, 2]] for name, value in params.items()}, inputs[[0, 2]], outputs[[0, 2]])
    heard = inbox(*some, sizes=(1, 5))
    assert_close(
        KroneckerWeighted().merge({}, lost), KroneckerWeighted().merge({}, heard), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("layers", ["output", "all"])
def test_alone_a_client_keeps_its_model(scene, play, layers):
    alone = scene(sizes=(7,), dtype=torch.float32)
    assert_close(play(alone, KFACWeighted(layers), 1).hub, play(alone, FedAvg(), 1).hub, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layers", "hidden"),
    [
        ("output", ("0.weight", "0.bias", "2.weight", "2.bias")),
        ("last2", ("0.weight", "0.bias")),
        ("all", ()),
    ],
)
def test_hidden_layers_are_fedavgs_bit_for_bit(scene, play, layers, hidden):
    where = scene(module="deep")
    weighed, averaged = (
        play(where, KFACWeighted(layers), 1).hub["params"],
        play(where, FedAvg(), 1).hub["params"],
    )
    assert {name for name in weighed if torch.equal(weighed[name], averaged[name])} == set(hidden)


def test_on_a_ring_nodes_merge_what_they_hear(scene, play):
    """Node 0 of a ring of four hears 1 and 3: it ends as a server of these three."""
    sizes = (7, 3, 10, 5)
    ring = replace(scene(sizes=sizes), topology=Ring(), init="common")
    node = {name: value[0, 0] for name, value in play(ring, KFACWeighted("all"), 1).hub["params"].items()}
    star = scene(sizes=sizes)
    shards = list(star.partitions[0].shards)
    shards[2] = shards[2][:0]
    three = replace(star, partitions={0: replace(star.partitions[0], shards=tuple(shards))})
    server = {name: value[0] for name, value in play(three, KFACWeighted("all"), 1).hub["params"].items()}
    assert_close(node, server, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("block", [1, 10**9])
def test_messages_may_be_taken_one_by_one(uploads, monkeypatch, block):
    monkeypatch.setattr(kfac_weighted, "BLOCK", block)
    together, apart = (inbox(*uploads, node=node) for node in (None, 1))
    assert_close(merged_layer(apart, **EXACT), merged_layer(together, **EXACT), rtol=1e-8, atol=1e-9)


# A: 201 x 202 / 2 (and 785 x 786 / 2 below), B: 10 x 11 / 2 or 200 x 201 / 2.
@pytest.mark.parametrize(
    ("layers", "inputs", "outputs"),
    [("output", 20_301, 55), ("last2", 40_602, 20_155), ("all", 349_107, 40_255)],
)
def test_the_upload_is_the_model_and_two_triangles_a_layer(scene, play, layers, inputs, outputs):
    random = np.random.default_rng(0)
    rows = random.normal(size=(4, 784)).astype(np.float32)
    data = Dataset.from_arrays("grey", rows, np.arange(4), rows, np.arange(4), classes=10)
    where = scene(sizes=(2, 2), epochs=1, dtype=torch.float32)
    where = replace(where, dataset=data, build=lambda: MLP().build((1, 28, 28), 10))
    record = play(where, KFACWeighted(layers, iterations=1), 0).step(evaluate=False)[0]
    assert record.bytes_up["params"] == 2 * 4 * 199_210
    assert record.bytes_up[INPUTS] == 2 * 4 * inputs
    assert record.bytes_up[OUTPUTS] == 2 * 4 * outputs


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"damping": -1.0}, "damping must be at least 0"),
        ({"tolerance": -1.0}, "tolerance must be at least 0"),
        ({"iterations": 0}, "iterations must be at least 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, line):
    with pytest.raises(UserError, match=line):
        KFACWeighted(**options)
