"""How many messages a merged parameter is made of: what rules say is what they do."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.aggregate import effective_number
from consilience.algorithm import Inbox
from consilience.rules import RULES
from consilience.rules.by_data import ByData
from consilience.rules.consensus import Consensus
from consilience.rules.fisher_merge import FisherWeighted
from consilience.rules.hessian_weighted import HessianWeighted

SIZES = {"everybody": (4, 7, 1, 3), "some": (4, 0, 1, 3), "itself": (0, 0, 5, 0), "others": (4, 7, 0, 3)}
"""Samples of four senders, 0 for those who were not heard; the third is the node itself."""
NODE = 2


def inbox(sizes: tuple[int, ...]) -> Inbox:
    random = torch.Generator().manual_seed(0)
    weights = torch.tensor(sizes, dtype=torch.float64)
    peers = weights.clone()
    peers[NODE] = 0
    importance = torch.rand(4, 2, 3, generator=random, dtype=torch.float64) ** 4
    importance[:, 0, 0] = 0
    mixing = torch.where(peers > 0, 0.2, 0.0)
    mixing[NODE] = 1 - mixing.sum()
    messages = {
        "params": {name: torch.zeros(4, *shape).double() for name, shape in (("w", (2, 3)), ("b", (2,)))},
        "importance": {"w": importance},
    }
    return Inbox(
        messages,
        weights / weights.sum(),
        peers / peers.sum().clamp(min=1),
        tree.index(messages, NODE),
        torch.tensor(4.0),
        mixing,
    )


def seen(rule, heard: Inbox) -> torch.Tensor:
    """The same number from the weights themselves: what is merged where one message is 1 and the others 0."""
    zeros = tree.zeros_like(tree.index({"params": heard["params"]}, 0)["params"])
    ones = {name: value + 1 for name, value in zeros.items()}
    weights = []
    for sender in range(4):
        params = {name: value.clone() for name, value in heard["params"].items()}
        for value in params.values():
            value[sender] = 1
        merged = rule.merge(zeros, Inbox({**heard.messages, "params": params}, *_rest(heard)))
        weights.append(torch.cat([value.flatten() for value in merged.values()]))
    weights.append(
        torch.cat([value.flatten() for value in rule.merge(ones, heard).values()])
    )  # its old model
    stacked = torch.stack(weights)
    return (stacked.sum(0).square() / stacked.square().sum(0)).mean()


def _rest(heard: Inbox) -> tuple:
    return heard.weights, heard.peers, heard.own, heard.population, heard.mixing


KNOWN = [
    ByData(),
    ByData("uniform"),
    ByData("metropolis"),
    Consensus(0.3),
    Consensus("inverse_degree", "sequential"),
    HessianWeighted(),
    HessianWeighted(weighting="uniform"),
    HessianWeighted(include_self=False),
    HessianWeighted(include_self=False, weighting="uniform"),
    FisherWeighted(),
    FisherWeighted(floor=0.0, weighting="uniform"),
]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("rule", KNOWN, ids=repr)
def test_the_number_is_that_of_the_weights(rule, sizes):
    heard = inbox(sizes)
    assert_close(rule.contributors(heard), seen(rule, heard), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "rule",
    [
        *(
            RULES[name]()
            for name in (
                "median",
                "trimmed_mean",
                "geometric_median",
                "krum",
                "bounded_move",
                "kfac_weighted",
            )
        ),
        HessianWeighted(guard=1.0),
        HessianWeighted(form="client_split"),
        HessianWeighted(form="as_printed"),
    ],
    ids=repr,
)
def test_rules_without_known_weights_say_nothing(rule):
    assert rule.contributors(inbox(SIZES["everybody"])) is None


@pytest.mark.parametrize(
    ("weights", "number"),
    [((0.25,) * 4, 4.0), ((1.0, 0.0), 1.0), ((0.75, 0.25), 1.6), ((3.0, 1.0), 1.6), ((0.0, 0.0), 1.0)],
)
def test_as_many_equal_weights_as_are_as_uneven(weights, number):
    assert float(effective_number(torch.tensor(weights))) == pytest.approx(number)
