"""The guard of Hessian-weighted rules: exaggerated curvature does not decide."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Inbox
from consilience.algorithms.dechw import DecHW, DecHWStar, FrozenDecHW
from consilience.algorithms.hwa import HWA
from consilience.errors import UserError
from consilience.rules import robust
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted, _unit
from consilience.testing import PROPERTIES, check_property, prepare

CLIENTS = 10
SHAPES = {"a.weight": (20, 30), "a.bias": (20,), "b.weight": (10, 20), "b.bias": (10,)}
RECOMMENDED = 1.0
SCOPES = ["layer", "tensor", "model", "none"]


def curvature(scope="layer", dtype=torch.float32, seed=0):
    """What ten honest clients send: exponential entries, each client's normalised."""
    random = torch.Generator().manual_seed(seed)
    entries = {
        name: torch.empty(CLIENTS, *shape, dtype=dtype).exponential_(generator=random)
        for name, shape in SHAPES.items()
    }
    return torch.func.vmap(lambda own: _unit(own, tree.layers(entries), scope))(entries)


def told(importance, lie):
    """The same with another curvature of client 0."""
    changed = {name: value.clone() for name, value in importance.items()}
    for name, value in changed.items():
        value[0] = lie(name, value[0])
    return changed


def inbox(params, importance, heard=None, node=None):
    weights = torch.ones(CLIENTS, dtype=torch.float64) if heard is None else torch.as_tensor(heard).double()
    weights = weights / weights.sum()
    messages = {"params": params, "importance": importance}
    own = None if node is None else tree.index(messages, node)
    return Inbox(messages, weights, weights, own, torch.tensor(float(CLIENTS)))


def share(rule, importance, client=0):
    """[coordinates] what a client decides: the merged model where its own is 1 and all others are 0."""
    params = {name: torch.zeros(CLIENTS, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for value in params.values():
        value[client] = 1
    merged = rule.merge({}, inbox(params, importance))
    return torch.cat([value.reshape(-1) for value in merged.values()])


def rule(guard, scope="layer", form="normalised"):
    return HessianWeighted("all", form, norm_scope=scope, guard=guard)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("factor", [10.0, 1e3, 1e6, 1e30])
def test_a_client_that_multiplies_its_curvature_decides_alone_without_the_guard_and_a_fifth_with_it(
    factor, scope
):
    lies = told(curvature(scope), lambda name, own: factor * own)
    without, guarded = (share(rule(guard, scope), lies) for guard in (None, RECOMMENDED))
    assert without.mean() > {10.0: 0.4, 1e3: 0.95}.get(factor, 0.999)
    assert guarded.max() <= 0.20 + 1e-12
    # The lie has no effect at all: what is received has unit norm again.
    assert_close(guarded, share(rule(RECOMMENDED, scope), curvature(scope)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("factor", [1.0, 1e3, 1e30])
def test_a_client_that_claims_one_coordinate_gets_no_more_than_a_fifth_of_it(factor, scope):
    def concentrate(name, own):
        lie = torch.zeros_like(own)
        lie[0] = factor if own.ndim == 1 else factor * torch.eye(1, own.shape[1])[0]
        return lie

    lies = told(curvature(scope), concentrate)
    if factor > 1:
        assert share(rule(None, scope), lies)[[0, 600, 620, 820]].min() > 0.9  # the first of every tensor
    assert share(rule(RECOMMENDED, scope), lies).max() <= 0.20 + 1e-12


@pytest.mark.parametrize("guard", [0.5, 1.0, 2.0, 5.0])
def test_the_share_stays_below_its_bound_whatever_the_others_have(guard):
    """Honest curvature of many scales, with zeros: the worst case is all of the lower half at 0."""
    random = torch.Generator().manual_seed(1)
    honest = {name: value ** (1 + 5 * torch.rand(1, generator=random)) for name, value in curvature().items()}
    honest = {
        name: value * (torch.rand(value.shape, generator=random) < 0.7) for name, value in honest.items()
    }
    lies = told(honest, lambda name, own: 1e30 * torch.ones_like(own))
    bound = max(guard, 1.0) / (max(guard, 1.0) + CLIENTS / 2 - 1)
    assert share(rule(guard), lies).max() <= bound + 1e-12


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, -1.0, -1e30])
@pytest.mark.parametrize("form", ["normalised", "client_split", "as_printed"])
def test_entries_that_are_no_curvature_count_as_none(bad, form):
    random = torch.rand(SHAPES["a.weight"]) < 0.3
    spoiled, blank = (
        told(curvature(), lambda name, own, v=v: own.masked_fill(random, v) if name == "a.weight" else own)
        for v in (bad, 0.0)
    )
    found, expected = (share(rule(RECOMMENDED, form=form), one) for one in (spoiled, blank))
    assert found.isfinite().all()
    assert_close(found, expected, rtol=0, atol=0)


def test_what_few_clients_have_curvature_about_is_averaged_by_data():
    importance = curvature()
    importance["b.bias"][4:, 3] = 0  # four of ten are left: fewer than half
    importance["b.bias"][5:, 4] = 0  # five of ten
    params = {name: torch.randn(value.shape) for name, value in importance.items()}
    heard = torch.arange(1.0, 11)
    merged = rule(RECOMMENDED).merge({}, inbox(params, importance, heard))["b.bias"]
    plain = ByData().merge({}, inbox(params, importance, heard))["b.bias"]
    assert merged[3] == plain[3]
    assert_close(merged[4], params["b.bias"][:5, 4].mean())


def test_by_hand():
    """Three clients, one layer of two coordinates; norms 5, 10 and 1."""
    importance = {"o.weight": torch.tensor([[[3.0, 4.0]], [[6.0, 8.0]], [[1.0, 0.0]]], dtype=torch.float64)}
    params = {"o.weight": torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]], [[4.0, 4.0]]], dtype=torch.float64)}
    heard = Inbox(
        {"params": params, "importance": importance}, *[torch.full((3,), 1 / 3).double()] * 2, None, 3
    )
    # Unit: (0.6, 0.8), (0.6, 0.8), (1, 0); medians 0.6 and 0.8.
    for guard, third in ((1.0, 0.6), (1.5, 0.9), (9.0, 1.0)):
        first = (0.6 * 1 + 0.6 * 2 + third * 4) / (1.2 + third)
        merged = HessianWeighted(guard=guard).merge({}, heard)["o.weight"]
        assert_close(merged, torch.tensor([[first, 1.5]], dtype=torch.float64))


def test_a_message_that_was_not_received_does_not_count():
    heard = [k not in (2, 7) for k in range(CLIENTS)]
    params = {name: torch.randn(value.shape).double() for name, value in curvature().items()}
    lost = rule(RECOMMENDED).merge({}, inbox(params, curvature(), heard))
    left = torch.tensor(heard)
    messages = {"params": params, "importance": curvature()}
    shares = torch.full((8,), 1 / 8).double()
    alone = Inbox(tree.index(messages, left), shares, shares, None, torch.tensor(8.0))
    assert_close(lost, rule(RECOMMENDED).merge({}, alone), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", ["normalised", "client_split", "as_printed"])
@pytest.mark.parametrize("node", [None, 0])
def test_blocks_do_not_show(form, node, monkeypatch):
    importance = told(curvature(), lambda name, own: 0 * own if name.startswith("a") else own)
    importance["a.weight"][0, -1, -1] = 1  # a layer that is dead in most blocks, yet not dead
    params = {name: torch.randn(value.shape) for name, value in importance.items()}
    heard = inbox(params, importance, node=node)
    whole = rule(RECOMMENDED, form=form).merge({}, heard)
    monkeypatch.setattr(robust, "BLOCK", 1000)
    assert_close(rule(RECOMMENDED, form=form).merge({}, heard), whole, rtol=1e-6, atol=1e-7)


def test_methods_hand_the_guard_to_their_rule():
    assert HWA(guard=1.0).parts().rule.guard == 1
    assert DecHW(guard=1.0).parts().rule.guard == 1
    assert DecHWStar(until=1, guard=1.0).parts().rule.guard == 1
    frozen = DecHWStar(until=1, mode="freeze", guard=1.0).at(1)
    assert isinstance(frozen, FrozenDecHW)
    assert frozen.parts().rule.guard == 1
    assert {method().parts().rule.guard for method in (HWA, DecHW, DecHWStar)} == {None}


def test_a_negative_guard_is_refused():
    with pytest.raises(UserError, match="guard must be at least 0, not -1"):
        HWA(guard=-1.0)


CASES = {
    "hwa-split": HWA("last2", "client_split", norm_scope="tensor", guard=2.0),
    "dechw": DecHW(guard=1.0),
    "dechw*-freeze": DecHWStar(until=1, mode="freeze", preset="released", guard=1.0),
}


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("case", CASES)
def test_guarded_methods_keep_the_contract(case, one):
    check_property(one, prepare(CASES[case]))
