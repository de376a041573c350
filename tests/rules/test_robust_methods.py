"""Robust rules in methods: what is refused, how they are chosen, the contract, learning beside a liar."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from consilience import tree
from consilience.algorithm import Conditions
from consilience.config.entries import read_method
from consilience.data import load
from consilience.data.partition import partition
from consilience.data.partitioners import Iid
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs.complete import Complete
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.models import MLP
from consilience.objectives.proximal import Proximal
from consilience.rules.by_data import ByData
from consilience.rules.geometric_median import GeometricMedian
from consilience.rules.krum import Krum
from consilience.rules.median import Median
from consilience.rules.trimmed_mean import TrimmedMean
from consilience.server_steps.relax import Relax
from consilience.testing import PROPERTIES, check_property, prepare

# Refusals


def setting(messages, graph=False):
    return Conditions(graph, SGD(), 1, holdout=False, unreliable=False, messages=messages)


@pytest.mark.parametrize(
    ("rule", "place", "line"),
    [
        (
            Krum(f=4),
            setting(10),
            "krum with f=4 needs at least 11 messages a round, but a hub hears 10",
        ),
        (
            Krum(f=1),
            setting(3, graph=True),
            "krum with f=1 needs at least 5 messages a round, but a node hears 3",
        ),
        (
            Krum(f=2, keep=7),
            setting(10),
            "krum with f=2 can keep at most 6 of the 10 messages a hub hears, not 7",
        ),
        (
            TrimmedMean(0.5),
            setting(10),
            "trimmed_mean with fraction 0.5 leaves nothing of the 10 messages a hub hears: "
            "it takes 5 at each end",
        ),
    ],
)
def test_the_impossible_is_refused_with_its_numbers(rule, place, line):
    assert Composed(rule=rule).refuse(place) == line


@pytest.mark.parametrize(
    ("rule", "messages"),
    [(Krum(f=4), 11), (Krum(f=2, keep=6), 10), (Krum(f=0), 3), (TrimmedMean(0.5), 9), (Median(), 1)],
)
def test_the_just_possible_is_not(rule, messages):
    assert Composed(rule=rule).refuse(setting(messages)) is None


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Krum(f=-1), "f must be at least 0, not -1"),
        (lambda: Krum(keep=0), "keep must be at least 1, not 0"),
        (lambda: TrimmedMean(-0.1), "fraction must be from 0 to 0.5, not -0.1"),
        (lambda: TrimmedMean(0.6), "fraction must be from 0 to 0.5, not 0.6"),
        (lambda: GeometricMedian(iterations=0), "iterations must be at least 1, not 0"),
        (lambda: GeometricMedian(eps=0.0), "eps must be above 0, not 0.0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make, line):
    with pytest.raises(UserError, match=line):
        make()


# Configurations


@pytest.mark.parametrize(
    ("entry", "method"),
    [
        ({"rule": {"name": "median"}}, Composed(rule=Median())),
        ({"rule": "trimmed_mean"}, Composed(rule=TrimmedMean(0.1))),
        ({"rule": {"name": "geometric_median", "iterations": 8}}, Composed(rule=GeometricMedian(8))),
        (
            {"rule": {"name": "krum", "f": 2}, "objective": {"name": "proximal", "mu": 0.1}},
            Composed(Proximal(mu=0.1), Krum(f=2)),
        ),
        (
            {"rule": {"name": "krum", "f": 2, "keep": 4}, "server": "relax"},
            Composed(rule=Krum(2, 4), server=Relax()),
        ),
        ({"rule": {"name": "krum", "keep": None}}, Composed(rule=Krum(1, None))),
    ],
)
def test_they_are_chosen_by_name(entry, method):
    assert read_method(entry).sweep.variants == (method,)


def test_a_trimmed_mean_that_trims_nothing_is_refused():
    for messages, fraction in ((9, 0.1), (3, 0.3)):
        reason = TrimmedMean(fraction).refuse(setting(messages))
        assert f"trims nothing of the {messages} messages" in reason
        enough = float(reason.split()[-1])
        assert TrimmedMean(enough).refuse(setting(messages)) is None
    assert TrimmedMean(0.0).refuse(setting(3)) is None


# The contract

COMPOSITIONS = {
    "median": Composed(rule=Median()),
    # So that one of three is trimmed at each end, e.g. in a ring.
    "trimmed_mean": Composed(rule=TrimmedMean(0.35)),
    "geometric_median": Composed(rule=GeometricMedian()),
    # A ring of the suite has neighbourhoods of three, in which nobody can be withstood.
    "krum": Composed(Proximal(mu=0.1), Krum(f=0), Relax(0.5)),
    "multi_krum": Composed(rule=Krum(f=0, keep=None)),
}


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("case", COMPOSITIONS)
def test_compositions_keep_the_contract(case, one):
    subject = prepare(COMPOSITIONS[case])
    assert subject.topologies == (Star(), Ring(), Complete())
    check_property(one, subject)


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
def test_krum_keeps_the_contract_where_five_hear_each_other(one):
    check_property(one, replace(prepare(Composed(rule=Krum(f=1, keep=2))), topologies=(Complete(),)))


# Learning


@dataclass(frozen=True)
class Lying(Composed):
    """A composition in which the client with the fewest samples sends garbage.

    Not its own model times something: a network of rectified units does not mind that much.
    """

    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        lies = client.samples < SAMPLES
        garbage = {name: torch.full_like(value, 100.0) for name, value in upload["params"].items()}
        return {**upload, **tree.where(lies, {"params": garbage}, {"params": upload["params"]})}, memory


SAMPLES = 100


@pytest.fixture(scope="module")
def digits():
    return load("mnist-sample")


def accuracy(digits, method, topology):
    part = partition(Iid(), digits.targets.numpy(), 10, 0)
    shards = tuple(shard[:SAMPLES] for shard in part.shards)
    scene = Scene(
        dataset=digits,
        build=lambda: MLP((32,)).build(digits.shape, 10),
        partitions={0: replace(part, shards=(shards[0][:-1], *shards[1:]))},
        topology=topology,
        work=LocalWork(2, None, 16),
        participation=10,
    )
    simulation = simulate(scene, [(method, SGD(0.02))])
    for _ in range(10):
        simulation.step(evaluate=False)
    return simulation.evaluate()[0]["test_accuracy"]


MEAN = ByData()


@pytest.mark.parametrize(
    ("topology", "rules"),
    [
        (Star(), [MEAN, Median(), TrimmedMean(), GeometricMedian(), Krum(f=1), Krum(f=1, keep=None)]),
        (Complete(), [MEAN, Median(), Krum(f=1)]),
    ],
    ids=["star", "complete"],
)
def test_one_client_that_sends_garbage_ruins_the_mean_alone(digits, topology, rules):
    found = {rule: accuracy(digits, Lying(rule=rule), topology) for rule in rules}
    # All honest, the mean reaches 0.80; with the garbage it guesses, and the others reach 0.70 or more.
    assert found.pop(MEAN) < 0.2
    assert min(found.values()) > 0.6
