"""What methods withstand: dropout, exaggerated curvature, clients that lie about their models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Algorithm, Conditions, Inbox
from consilience.algorithms import METHODS
from consilience.data import load
from consilience.data.partition import partition
from consilience.data.partitioners import Iid
from consilience.deploy.carrying import InProcess
from consilience.deploy.carrying import federate as carry
from consilience.engine.build import simulate
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork, failed_clients
from consilience.graphs import Star
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.models import MLP
from consilience.rules.geometric_median import GeometricMedian
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.rules.krum import Krum
from consilience.rules.median import Median
from consilience.rules.trimmed_mean import TrimmedMean
from consilience.testing.federation import SIZES
from consilience.types import Params
from scorecard.federations import federation_of
from scorecard.finding import Finding, Tally, demand
from scorecard.spots import equal

CLIENTS = 10

# 8: dropout

DROPOUT, ROUNDS = 0.3, 50


def dropout(trials: int, folder: Path) -> Finding:
    """Check 8: three of ten answers are lost in every round, on average, over fifty rounds."""
    tally = Tally()
    for method in ("fedavg", "scaffold", "hwa")[:trials]:
        with tally.trial(f"{method}: aggregation over survivors"):
            place = federation_of(METHODS[method](), rounds=ROUNDS)
            unreliable = replace(place.simulation.world, failure_rate=DROPOUT)
            simulated = replace(place, simulation=Simulation(unreliable, place.simulation.algorithm))
            hub = place.hub()
            carry(hub, InProcess(place.sites(), _lost))
            demand(hub.round == ROUNDS, f"it ended in round {hub.round}")
            demand(equal(hub.state, simulated.simulated()[0]), "the weights are others than the survivors'")
        with tally.trial(f"{method}: accuracy"):
            whole, less = (_learned(METHODS[method](), rate) for rate in (0.0, DROPOUT))
            tally.most("points lost", 100 * (whole - less))
            demand(less >= whole - 0.02, f"{less:.3f} instead of {whole:.3f}")
    return tally.finding()


def _lost(round_number: int) -> set[int]:
    return set(failed_clients(0, round_number, np.arange(len(SIZES)), DROPOUT))


@cache
def _digits() -> Scene:
    """Ten clients of a hundred digits each, and a small network."""
    digits = load("mnist-sample")
    part = partition(Iid(), digits.targets.numpy(), CLIENTS, 0)
    shards = tuple(shard[:SAMPLES] for shard in part.shards)
    return Scene(
        dataset=digits,
        build=lambda: MLP((32,)).build(digits.shape, 10),
        partitions={0: replace(part, shards=shards)},
        topology=Star(),
        work=LocalWork(2, None, 16),
        participation=CLIENTS,
    )


def _learned(method: Algorithm, failure_rate: float = 0.0, rounds: int = ROUNDS, liars: int = 0) -> float:
    """The accuracy after some rounds; liars are known by a sample less."""
    scene = _digits()
    part = scene.partitions[0]
    shards = tuple(shard[: SAMPLES - (client < liars)] for client, shard in enumerate(part.shards))
    scene = replace(scene, partitions={0: replace(part, shards=shards)}, failure_rate=failure_rate)
    simulation = simulate(scene, [(method, SGD(0.02))])
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return float(simulation.evaluate()[0]["test_accuracy"])


SAMPLES = 100

# 23: curvature

SHAPES = {"a.weight": (20, 30), "a.bias": (20,), "b.weight": (10, 20), "b.bias": (10,)}
GUARD = 1.0


def _one_hot(own: Tensor) -> Tensor:
    lie = torch.zeros_like(own)
    lie.view(-1)[0] = 1e30
    return lie


LIES: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"x10^{power}": lambda own, power=power: own * 10.0**power for power in (1, 2, 3, 6, 12, 30)},
    "negative": lambda own: -1e30 * own,
    "flat": lambda own: torch.full_like(own, 1e30),
    "one-hot": _one_hot,
}


def inflated(trials: int, folder: Path) -> Finding:
    """Check 23: one client of ten lies about its curvature; what it then decides of any parameter."""
    tally = Tally()
    for scope, lie in list(product(("layer", "tensor", "model", "none"), LIES))[:trials]:
        honest = _curvature()
        told = {name: torch.cat([LIES[lie](value[0])[None], value[1:]]) for name, value in honest.items()}
        without, guarded = (
            _share(HessianWeighted("all", norm_scope=scope, guard=guard), told) for guard in (None, GUARD)
        )
        tally.most("largest share", guarded)
        tally.most("without the guard", without)
        tally.note(f"{lie}, normalised by {scope}", None if guarded <= 0.2 + 1e-9 else f"{guarded:.3f}")
    return tally.finding()


def _curvature() -> Params:
    """What ten honest clients send: exponential entries of unit norm."""
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.nn.functional.normalize(
            torch.empty(CLIENTS, *shape).exponential_(generator=random).flatten(1), dim=1
        ).view(CLIENTS, *shape)
        for name, shape in SHAPES.items()
    }


def _share(rule: HessianWeighted, importance: Params) -> float:
    """The most that the first client decides: the merged model where its own is 1 and all others are 0."""
    params = {name: torch.zeros(CLIENTS, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for value in params.values():
        value[0] = 1
    weights = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    inbox = Inbox(
        {"params": params, "importance": importance}, weights, weights, None, torch.tensor(float(CLIENTS))
    )
    return max(float(value.nan_to_num(1.0).max()) for value in rule.merge({}, inbox).values())


# 24: liars

RULES = {
    "median": (Median(), 4),
    "trimmed_mean": (TrimmedMean(0.4), 4),
    "geometric_median": (GeometricMedian(), 4),
    "krum": (Krum(f=3), 3),
    "multi_krum": (Krum(f=3, keep=None), 3),
}
"""Robust rules, and how many liars of ten clients each is made for at most."""
IMPOSSIBLE = {"krum": Krum(f=4), "multi_krum": Krum(f=2, keep=7), "trimmed_mean": TrimmedMean(0.5)}


@dataclass(frozen=True)
class Lying(Composed):
    """A composition in which clients with a sample less lie about what they have learned."""

    attack: str = "sign flip"

    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        lies = client.samples < SAMPLES
        lie = {
            name: self._lie(down["params"][name], value, place)
            for place, (name, value) in enumerate(upload["params"].items())
        }
        return {**upload, **tree.where(lies, {"params": lie}, {"params": upload["params"]})}, memory

    def _lie(self, start: Tensor, own: Tensor, place: int) -> Tensor:
        if self.attack == "sign flip":
            return start - (own - start)
        if self.attack == "inner product":  # the negative of what honest clients have learned, and larger
            return start - 2.0 * (own - start)
        # Noise of ten times the size of what was learned; alike in all that lie.
        noise = torch.from_numpy(np.random.default_rng(place).standard_normal(own.shape)).to(own.dtype)
        return start + 10.0 * (own - start).norm() / own.numel() ** 0.5 * noise


ATTACKS = ("sign flip", "scaled noise", "inner product")
LEARNING = 30
LOST = 5.0
"""How many points of accuracy liars may cost."""


def liars(trials: int, folder: Path) -> Finding:
    """Check 24: as many liars as a rule is made for; and rules are refused where there would be too many."""
    tally, failed = Tally(), set[str]()
    for name, attack in list(product(RULES, ATTACKS))[:trials]:
        with tally.trial(f"{name}, {attack}"):
            lost = _points_lost(name, attack, RULES[name][1])
            tally.most(f"points lost, {name}", lost)
            failed |= {name} if lost > LOST else set()
            demand(lost <= LOST, f"{lost:.1f} points lost")
    for name in sorted(failed):  # how many it does withstand
        fewer = range(RULES[name][1] - 1, 0, -1)
        tally.figures[f"liars withstood, {name}"] = next(
            (f for f in fewer if all(_points_lost(name, attack, f) <= LOST for attack in ATTACKS)), 0
        )
    place = Conditions(False, SGD(), 1, holdout=False, unreliable=False, messages=CLIENTS)
    for name, rule in IMPOSSIBLE.items():
        refused = Composed(rule=rule).refuse(place)
        tally.note(f"{name}, impossible", None if refused else "it was not refused")
    return tally.finding()


def _points_lost(name: str, attack: str, count: int) -> float:
    """How much less accurate the model is where some clients lie."""
    found = _learned(Lying(rule=RULES[name][0], attack=attack), rounds=LEARNING, liars=count)
    return 100 * (_honest(name) - found)


@cache
def _honest(name: str) -> float:
    return _learned(Composed(rule=RULES[name][0]), rounds=LEARNING)
