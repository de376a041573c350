"""Any objective with any rule: compositions equal their parts run by hand, and clashes are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.hwa import HWA
from consilience.algorithms.moon import MOON
from consilience.algorithms.scaffold import Scaffold
from consilience.algorithms.swa import SWA
from consilience.config.entries import read_method
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.method import Composed
from consilience.models import MLP
from consilience.objectives.base import Objective
from consilience.objectives.contrastive import Contrastive
from consilience.objectives.control_variates import ControlVariates
from consilience.objectives.drift import DriftVariable
from consilience.objectives.fisher_elastic import FisherElastic
from consilience.objectives.proximal import Proximal
from consilience.rules.base import Rule
from consilience.rules.by_data import ByData
from consilience.rules.gaussianity import Gaussianity
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.rules.krum import Krum
from consilience.rules.median import Median
from consilience.server_steps.base import ServerStep
from consilience.server_steps.relax import Relax


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


def test_a_proximal_objective_with_hwas_rule_equals_both_by_hand(scene, play):
    """Each client trained alone by FedProx; then D, r = D / |D| and the mean weighted by r, output layer."""
    where = scene(sizes=(5, 3, 8))
    part, trained, importance = where.partitions[0], [], []
    for client, rows in enumerate(part.shards):
        shards = tuple(shard if k == client else shard[:0] for k, shard in enumerate(part.shards))
        own = model(play(replace(where, partitions={0: replace(part, shards=shards)}), FedProx(mu=0.8), 1))
        inputs, targets = where.dataset.inputs[rows], where.dataset.targets[rows]
        hidden = torch.tanh(F.linear(inputs, own["0.weight"], own["0.bias"]))
        delta = F.linear(hidden, own["2.weight"], own["2.bias"]).softmax(-1) - F.one_hot(targets, 3)
        diagonal = torch.cat([(delta**2).T @ hidden**2, (delta**2).sum(0)[:, None]], 1)
        trained.append(own)
        importance.append(diagonal / diagonal.norm())
    total = sum(importance)
    shares = torch.tensor([5 / 16, 3 / 16, 8 / 16], dtype=torch.float64)
    expected = {
        name: torch.tensordot(shares, torch.stack([m[name] for m in trained]), 1) for name in trained[0]
    }
    outputs = [torch.cat([m["2.weight"], m["2.bias"][:, None]], 1) for m in trained]
    weighed = sum(r / total * w for r, w in zip(importance, outputs, strict=True))
    expected |= {"2.weight": weighed[:, :-1], "2.bias": weighed[:, -1]}
    composed = play(where, Composed(Proximal(mu=0.8), HessianWeighted()), 1)
    assert_close(model(composed), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("composed", "named"),
    [
        (Composed(), FedAvg()),
        (Composed(Proximal(mu=0.0), HessianWeighted()), HWA()),
        (Composed(Proximal(mu=0.3)), FedProx(mu=0.3)),
        (Composed(FisherElastic(), ByData("uniform")), FedCurv()),
        (Composed(ControlVariates(), ByData("uniform"), Relax(0.7)), Scaffold(server_lr=0.7)),
        (Composed(rule=Gaussianity("renyi1")), SWA("renyi1")),
    ],
)
def test_the_papers_methods_are_compositions_bit_for_bit(scene, play, dtype, composed, named):
    where = scene(dtype=dtype)
    assert_close(play(where, composed).hub, play(where, named).hub, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("composed", "named", "entries"),
    [
        (
            Composed(Contrastive(mu=8.0), rule=Gaussianity()),
            SWA(contrastive=8.0),
            (
                {"objective": {"name": "contrastive", "mu": 8}, "rule": "gaussianity"},
                {"name": "swa", "contrastive": 8},
            ),
        ),
        (
            Composed(Contrastive(mu=5.0, pool=2), ByData()),
            MOON(pool=2),
            ({"objective": {"name": "contrastive", "pool": 2}}, {"name": "moon", "pool": 2}),
        ),
    ],
)
def test_contrastive_methods_are_compositions_bit_for_bit(scene, play, dtype, composed, named, entries):
    """In Python and in a configuration; their model has features."""
    where = replace(scene(dtype=dtype), build=lambda: MLP((8,)).build((6,), 3))
    assert [read_method(entry).sweep.variants for entry in entries] == [(composed,), (named,)]
    first, second = play(where, composed), play(where, named)
    assert_close(first.hub, second.hub, rtol=0, atol=0)
    assert_close(first.store.load(range(5)), second.store.load(range(5)), rtol=0, atol=0)


def test_a_server_step_goes_a_fraction_of_the_way(scene, play):
    start, whole = (model(play(scene(), HWA(), rounds)) for rounds in (0, 1))
    half = model(play(scene(), Composed(rule=HessianWeighted(), server=Relax(0.5)), 1))
    middle = tree.scale(0.5, tree.add(start, whole))
    assert_close(half, middle, rtol=1e-12, atol=1e-14)


def test_states_of_different_parts_live_side_by_side(scene, play):
    rule = HessianWeighted("all", accumulate="sum", norm_scope="model")
    simulation = play(scene(), Composed(FisherElastic(), rule, Relax(0.9)), 2)
    assert simulation.store.load([0]).keys() == {"fisher", "fisher_params", "importance", "importance_clock"}


@dataclass(frozen=True)
class Remembering(Rule):
    """Keeps a memory of a name that control variates use, too."""

    name = "remembering"

    def init_memory(self, model):
        return {"control": model["params"]}

    def merge(self, old, inbox):
        return inbox.mean("params")


@dataclass(frozen=True)
class Sending(Rule):
    """Sends evidence of a name that control variates use, too."""

    name = "sending"

    def evidence(self, client, model, memory):
        return {"control_change": model["params"]}, {}

    def merge(self, old, inbox):
        return inbox.mean("params")


@dataclass(frozen=True)
class Keeping(ServerStep):
    """Keeps a hub state of a name that control variates use, too."""

    def init(self, params):
        return {"control": params}


@pytest.mark.parametrize(
    ("parts", "state"),
    [
        ({"rule": Remembering()}, "'control'"),
        ({"rule": Sending()}, "'control_change'"),
        ({"server": Keeping()}, "'control'"),
    ],
)
def test_parts_whose_states_clash_are_refused_by_name(scene, play, parts, state):
    with pytest.raises(UserError, match=f"two parts of this method both use the state {state}"):
        play(scene(), replace(Composed(ControlVariates(), ByData("uniform")), **parts), 1)


def test_a_composition_is_refused_where_one_of_its_parts_is(scene, play):
    with pytest.raises(UserError, match=r"composed: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), Composed(ControlVariates(), HessianWeighted()))


def test_an_objectives_own_number_comes_first():
    assert Proximal(0.5).mu == 0.5


def test_controls_are_not_combined_with_an_average_by_data():
    with pytest.raises(UserError, match=r"control_variates with by_data: .* uniform"):
        Composed(ControlVariates(), ByData("samples"))


IN_A_FILE = [
    ({"objective": {"name": "proximal", "mu": 0.1}, "rule": "hessian_weighted"}, Proximal, HessianWeighted),
    ({"objective": "contrastive", "rule": "gaussianity"}, Contrastive, Gaussianity),
    (
        {
            "objective": "control_variates",
            "rule": {"name": "by_data", "weighting": "uniform"},
            "server": "extrapolate",
        },
        ControlVariates,
        ByData,
    ),
    ({"objective": "drift_variable", "rule": "median", "server": "add_drift"}, DriftVariable, Median),
    ({"rule": {"name": "krum", "f": 0}, "server": {"name": "adaptive", "kind": "yogi"}}, Objective, Krum),
]


@pytest.mark.parametrize(("entry", "objective", "rule"), IN_A_FILE)
def test_parts_of_different_papers_combine_in_a_configuration_and_train(entry, objective, rule, scene, play):
    (method,) = read_method(entry).sweep.variants
    assert isinstance(method, Composed)
    assert isinstance(method.objective, objective)
    assert isinstance(method.rule, rule)
    where = replace(scene(), build=lambda: MLP((8,)).build((6,), 3))
    before, after = (tree.flatten(play(where, method, rounds).hub) for rounds in (0, 2))
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(before[path], value) for path, value in after.items())


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"objective": "control_variates"}, "set the rule's weighting to uniform"),
        ({"rule": "hessian_weighted", "server": "extrapolate"}, "use the rule by_data"),
        ({"server": "add_drift"}, "no drift is kept"),
        ({"objective": {"name": "proximal", "mu": 0.1}, "rule": "normalised_steps"}, "make them equal"),
    ],
)
def test_pairs_that_make_no_sense_are_refused_with_the_reason(entry, reason):
    with pytest.raises(UserError, match=reason):
        read_method(entry)


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"rule": "median"}, "rule must be of type Rule, not 'median'"),
        ({"rule": Objective()}, "rule must be of type Rule, not Objective"),
        ({"server": ByData()}, "server must be of type ServerStep, not ByData"),
    ],
)
def test_other_things_are_no_parts(parts, line):
    with pytest.raises(UserError, match=line):
        Composed(**parts)
