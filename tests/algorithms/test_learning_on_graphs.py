"""Methods for a graph of peers learn: ten nodes with two digits each that start from models of their own.

The margin is how much the mean test accuracy over nodes must rise above that of the initial models, which guess
(about 0.1). Local training knows two of ten digits, so it cannot get beyond 0.2.
"""

from __future__ import annotations

import functools

import pytest

from consilience.algorithm import Algorithm
from consilience.algorithms.cfa import CFA
from consilience.algorithms.decdiff import DecDiff
from consilience.algorithms.decdiff_vt import DecDiffVT
from consilience.algorithms.dpsgd import DPSGD
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.gradient_tracking import GradientTracking
from consilience.data import load
from consilience.data.partition import partition
from consilience.data.partitioners import ShardsTwoClasses
from consilience.engine.build import Scene, simulate
from consilience.engine.cohort import LocalWork
from consilience.models import MLP
from consilience.solver import SGD
from consilience.topology import ErdosRenyi

ROUNDS = 8


@functools.cache
def accuracy(method: Algorithm, rounds: int = ROUNDS) -> float:
    """Over nodes and two seeds."""
    digits = load("mnist-sample")
    scene = Scene(
        dataset=digits,
        build=lambda: MLP((64,)).build(digits.shape, 10),
        partitions={seed: partition(ShardsTwoClasses(), digits.targets.numpy(), 10, seed) for seed in range(2)},
        topology=ErdosRenyi(p=0.5),
        work=LocalWork(1, None, 32),
        participation=10,
        init="different",
    )
    simulation = simulate(scene, [(method, SGD(0.05))])
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return sum(scores["test_accuracy"] for scores in simulation.evaluate()) / 2
