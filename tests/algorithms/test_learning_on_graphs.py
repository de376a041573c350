"""Methods for a graph of peers learn: ten nodes with two digits each that start from models of their own.

The margin is how much the mean test accuracy over nodes must rise above that of the initial models, which
guess (about 0.1). Local training knows two of ten digits, so it rises by less than 0.1. Methods whose nodes
come together slowly get more rounds.
"""

from __future__ import annotations

import functools

import pytest

from consilience.algorithm import Algorithm
from consilience.algorithms.cfa import CFA
from consilience.algorithms.cfa_ge import CFAGE
from consilience.algorithms.decdiff import DecDiff
from consilience.algorithms.decdiff_vt import DecDiffVT
from consilience.algorithms.dpsgd import DPSGD
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.gradient_tracking import GradientTracking
from consilience.algorithms.local import Local
from consilience.data import load
from consilience.data.partition import partition
from consilience.data.partitioners import ShardsTwoClasses
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.learning.solvers import SGD
from consilience.models import MLP


@functools.cache
def accuracy(method: Algorithm, rounds: int) -> float:
    """The mean over nodes."""
    digits = load("mnist-sample")
    scene = Scene(
        dataset=digits,
        build=lambda: MLP((64,)).build(digits.shape, 10),
        partitions={0: partition(ShardsTwoClasses(), digits.targets.numpy(), 10, 0)},
        topology=ErdosRenyi(p=0.5),
        work=LocalWork(1, None, 32),
        participation=10,
        init="different",
    )
    simulation = simulate(scene, [(method, SGD(0.05))])
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return simulation.evaluate()[0]["test_accuracy"]


MARGINS: list[tuple[Algorithm, int, float]] = [
    (CFA(), 8, 0.28),  # measured: 0.35, DecHetero 0.40
    (CFA(mode="sequential"), 8, 0.19),  # 0.26
    (CFAGE(), 8, 0.26),  # 0.34
    (CFAGE(point="merged"), 8, 0.3),  # 0.37
    (DPSGD(), 8, 0.25),  # 0.32
    (DecDiff(), 20, 0.42),  # 0.50, DecHetero 0.58
    (DecDiff("model"), 20, 0.3),  # 0.37
    (DecDiffVT(), 20, 0.44),  # 0.52
    (GradientTracking(), 20, 0.33),  # 0.41
    (GradientTracking(0.03, "combine_then_adapt"), 20, 0.22),  # 0.30
]


@pytest.mark.parametrize(("method", "rounds", "margin"), MARGINS, ids=str)
def test_methods_learn(method: Algorithm, rounds: int, margin: float) -> None:
    assert accuracy(method, rounds) > accuracy(FedAvg(), 0) + margin


def test_alone_nodes_do_not() -> None:
    assert accuracy(Local(), 20) < accuracy(FedAvg(), 0) + 0.1
