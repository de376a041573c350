"""Options of the Hessian-weighted rule: forms, scopes of the norm, accumulation, and who takes part."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Inbox
from consilience.algorithms.dechw import Resent
from consilience.errors import UserError
from consilience.rules.hessian_weighted import HessianWeighted

MODEL = {"params": {"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2), "b.weight": torch.ones(3, 2)}}
DIAGONAL = {
    "a.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "a.bias": torch.tensor([5.0, 6.0]),
    "b.weight": torch.tensor([[7.0, 8.0], [9.0, 0.0], [0.0, 1.0]]),
}


def client(diagonal):
    return SimpleNamespace(
        squared_gradients=lambda model, names, kind: {name: diagonal[name] for name in names}
    )


def inbox(values, importance, weights, node=None, peers=None):
    messages = {
        "params": {"o.weight": torch.tensor(values)[:, None, None]},
        "importance": {"o.weight": torch.tensor(importance)[:, None, None]},
    }
    shares = torch.tensor(weights, dtype=torch.float64)
    others = shares if peers is None else torch.tensor(peers, dtype=torch.float64)
    return Inbox(messages, shares, others, None if node is None else tree.index(messages, node), len(values))


def norm(params, names):
    return torch.stack([params[name].square().sum() for name in names]).sum().sqrt().item()


@pytest.mark.parametrize(
    ("scope", "groups"),
    [
        ("layer", [("a.weight", "a.bias"), ("b.weight",)]),
        ("tensor", [("a.weight",), ("a.bias",), ("b.weight",)]),
        ("model", [("a.weight", "a.bias", "b.weight")]),
    ],
)
def test_each_group_of_the_scope_has_unit_norm(scope, groups):
    rule = HessianWeighted("all", norm_scope=scope)
    sent = rule.evidence(client(DIAGONAL), MODEL, {})[0]["importance"]
    for names in groups:
        assert norm(sent, names) == pytest.approx(1)
        ratio = [sent[name] / DIAGONAL[name].clamp(min=1e-9) for name in names]
        assert torch.cat([r[DIAGONAL[n] > 0] for r, n in zip(ratio, names, strict=True)]).std() < 1e-6


def test_without_a_scope_curvature_is_sent_as_it_is():
    assert HessianWeighted("all", norm_scope="none").evidence(client(DIAGONAL), MODEL, {})[0] == {
        "importance": DIAGONAL
    }


@pytest.mark.parametrize("scale", [1e-30, 1e-38, 1e30])
def test_squares_of_tiny_or_huge_curvature_neither_vanish_nor_overflow_in_float32(scale):
    rule = HessianWeighted("all", norm_scope="model")
    scaled = {name: value * scale for name, value in DIAGONAL.items()}
    sent = rule.evidence(client(scaled), MODEL, {})[0]["importance"]
    assert norm(sent, DIAGONAL) == pytest.approx(1, rel=1e-5)


def test_a_dead_client_sends_zeros():
    dead = tree.zeros_like(DIAGONAL)
    assert_close(HessianWeighted("all").evidence(client(dead), MODEL, {})[0]["importance"], dead)


@pytest.mark.parametrize(
    ("accumulate", "beta", "expected"),
    [("none", 1.0, 5.0), ("sum", 1.0, 8.0), ("sum", 0.5, 4.5), ("ema", 1.0, 5.0), ("ema", 0.5, 3.25)],
)
def test_accumulation_over_three_rounds_of_curvature_1_2_5(accumulate, beta, expected):
    rule = HessianWeighted("all", norm_scope="none", accumulate=accumulate, beta=beta)
    memory = rule.init_memory(MODEL)
    for value in (1.0, 2.0, 5.0):
        diagonal = {name: torch.full_like(old, value) for name, old in DIAGONAL.items()}
        sent, kept = rule.evidence(client(diagonal), MODEL, memory)
        memory = {**memory, **kept}
    assert sent["importance"]["a.bias"].tolist() == [expected] * 2


def test_resent_is_what_was_accumulated_and_nothing_is_computed():
    memory = {"importance": DIAGONAL}
    rule = Resent("all", accumulate="sum")
    assert rule.evidence(None, MODEL, memory) == ({"importance": DIAGONAL}, {})


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        # Shares of curvature 1/4 and 3/4 for the first two; the third has none.
        ("normalised", 0.25 * 1 + 0.75 * 2),
        # The third keeps its share of the data, one half; the others divide the other half.
        ("client_split", 0.5 * 10 + 0.5 * (0.25 * 1 + 0.75 * 2)),
        # Not normalised over clients.
        ("as_printed", 0.2 * 1 + 0.6 * 2 + 0.5 * 10),
    ],
)
def test_forms_differ_in_what_a_client_without_curvature_counts(form, expected):
    heard = inbox([1.0, 2.0, 10.0], [0.2, 0.6, 0.0], [0.2, 0.3, 0.5])
    assert HessianWeighted(form=form).merge({}, heard)["o.weight"].item() == pytest.approx(expected)


@pytest.mark.parametrize("form", ["normalised", "client_split", "as_printed"])
def test_messages_that_were_not_received_do_not_count(form):
    with_lost = inbox([1.0, 2.0, 77.0], [0.2, 0.6, 5.0], [0.4, 0.6, 0.0])
    without = inbox([1.0, 2.0], [0.2, 0.6], [0.4, 0.6])
    merged = [
        HessianWeighted(form=form).merge({}, heard)["o.weight"].item() for heard in (with_lost, without)
    ]
    assert merged[0] == pytest.approx(merged[1])


@pytest.mark.parametrize(
    ("include_self", "weighting", "importance", "expected"),
    [
        (True, "samples", [1.0, 1.0, 2.0], 0.25 * 1 + 0.25 * 2 + 0.5 * 4),
        (False, "samples", [1.0, 1.0, 2.0], 1 / 3 * 2 + 2 / 3 * 4),
        (True, "samples", [0.0, 0.0, 0.0], 0.5 * 1 + 0.1 * 2 + 0.4 * 4),
        (False, "samples", [0.0, 0.0, 0.0], 0.2 * 2 + 0.8 * 4),
        (True, "uniform", [0.0, 0.0, 0.0], 7 / 3),
        (False, "uniform", [0.0, 0.0, 0.0], 3.0),
    ],
)
def test_a_node_counts_itself_or_not_and_falls_back_to_its_weighting(
    include_self, weighting, importance, expected
):
    heard = inbox([1.0, 2.0, 4.0], importance, [0.5, 0.1, 0.4], node=0, peers=[0.0, 0.2, 0.8])
    rule = HessianWeighted(include_self=include_self, weighting=weighting)
    assert rule.merge({}, heard)["o.weight"].item() == pytest.approx(expected)


@pytest.mark.parametrize("include_self", [True, False])
def test_an_isolated_node_keeps_its_own_model(include_self):
    heard = inbox([3.0, 99.0], [0.5, 0.5], [1.0, 0.0], node=0, peers=[0.0, 0.0])
    assert HessianWeighted(include_self=include_self).merge({}, heard)["o.weight"].item() == 3


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"accumulate": "sum", "beta": -1.0}, "beta must be at least 0"),
        ({"beta": 0.5}, "does nothing without accumulate"),
        ({"accumulate": "ema", "beta": 1.5}, "at most 1"),
    ],
)
def test_a_beta_that_makes_no_sense_is_refused(options, line):
    with pytest.raises(UserError, match=line):
        HessianWeighted(**options)
