"""Which hubs ask for nothing but sums, and what they get for messages that came in parts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithm import Inbox
from consilience.exchange.inbox import inbox_of
from consilience.exchange.summing import Answering, answer, ask, is_sum
from consilience.method import Composed
from consilience.rules.fisher_merge import FisherWeighted
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.rules.median import Median
from consilience.rules.normalised_steps import NormalisedSteps
from consilience.server_steps.extrapolate import Extrapolate
from consilience.types import State

HUB: State = {"params": {"a.weight": torch.zeros(3, 2), "a.bias": torch.zeros(3)}, "buffers": {}}
POPULATION = torch.tensor(9.0)
SAMPLES = torch.tensor([3.0, 1.0, 7.0, 2.0, 5.0], dtype=torch.float64)


def messages() -> State:
    random = torch.Generator().manual_seed(0)
    params = {name: torch.randn(5, *value.shape, generator=random) for name, value in HUB["params"].items()}
    return {
        "params": params,
        "buffers": {"mean": torch.randn(5, 4, generator=random), "count": torch.tensor([3, 9, 4, 1, 2])},
        "importance": {name: torch.rand(value.shape, generator=random) for name, value in params.items()},
        "effort": {"steps": torch.tensor([1.0, 4.0, 2.0, 0.0, 3.0])},
    }


SUMS = {
    "mean": Composed(),
    "curvature": Composed(rule=HessianWeighted(layers="all")),
    "Fisher": Composed(rule=FisherWeighted(layers="all", weighting="uniform")),
    "steps": Composed(rule=NormalisedSteps()),
    "extrapolated": Composed(server=Extrapolate()),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("missing", [[], [1], [0, 4]])
def test_sums_of_parts_are_what_a_hub_gets_from_all_messages(name, missing):
    combine, whole = SUMS[name].combine, messages()
    sound = torch.ones(5, dtype=torch.float64)
    sound[missing] = 0
    expected = combine(
        HUB, inbox_of(tree.where(sound > 0, whole, _blank(whole)), SAMPLES * sound, POPULATION)
    )
    assert is_sum(combine, HUB, tree.index(whole, 0), POPULATION)
    asked = ask(combine, HUB, whole, SAMPLES, POPULATION)
    sums = [
        {
            n: torch.einsum("k,k...->...", one.weights.double() * sound, v.double())
            if one.way == "sum"
            else torch.where(sound > 0, v, 0).amax(0)
            for n, v in one.values.items()
        }
        for one in asked
    ]
    dtypes = [{n: v.dtype for n, v in one.values.items()} for one in asked]
    answering = Answering(sums, dtypes, [one.weights for one in asked], sound)
    found = answer(combine, HUB, whole, SAMPLES, POPULATION, answering)
    assert_close(found, expected, rtol=1e-6, atol=1e-7)


def _blank(state: State) -> State:
    return tree.map_leaves(torch.zeros_like, state)


def spread(hub: State, inbox: Inbox) -> State:
    """A second sum that depends on the first."""
    mean = inbox.mean("params")["a.bias"]
    total = inbox.total(lambda given: {"apart": (given["params"]["a.bias"] - mean).square()})
    return {**hub, "spread": total}


def favourite(hub: State, inbox: Inbox) -> State:
    """Weights that do not keep their proportions when a message is missing."""
    weights = torch.softmax(50 * inbox.weights * inbox.heard.sum(), 0)
    return {**hub, "params": inbox.mean("params", weights)}


def looked_at(hub: State, inbox: Inbox) -> State:
    """Messages themselves."""
    return {**hub, "params": {name: value.amax(0) for name, value in inbox["params"].items()}}


@pytest.mark.parametrize(
    "combine", [spread, favourite, looked_at, Composed(rule=Median()).combine], ids=lambda one: one.__name__
)
def test_others_are_told_from_sums(combine):
    assert not is_sum(combine, HUB, tree.index(messages(), 0), POPULATION)


def test_a_guard_needs_all_messages_and_curvature_without_one_does_not():
    rule = HessianWeighted(layers="all")
    for one, expected in ((rule, True), (dataclasses.replace(rule, guard=1.0), False)):
        combine = Composed(rule=one).combine
        assert is_sum(combine, HUB, tree.index(messages(), 0), POPULATION) is expected
