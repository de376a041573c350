"""Every method learns: ten clients with two digits each, a small network, a few rounds.

The margin is how much the test accuracy must rise above the initial model's, which guesses (about 0.1).
Local training knows two of ten digits, so it cannot get beyond 0.2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.nn import functional as F

from consilience.algorithm import Algorithm
from consilience.algorithms.bl1 import BL1
from consilience.algorithms.dane import DANE
from consilience.algorithms.dechw import DecHW, DecHWStar
from consilience.algorithms.done import DONE
from consilience.algorithms.fagh import FAGH
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.feddane import FedDANE
from consilience.algorithms.fednl import FedNL
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.fedsso import FedSSO
from consilience.algorithms.fisher_merge import FisherMerge
from consilience.algorithms.giant import GIANT
from consilience.algorithms.hwa import HWA
from consilience.algorithms.kfac_weighted import KFACWeighted
from consilience.algorithms.local import Local
from consilience.algorithms.scaffold import Scaffold
from consilience.algorithms.swa import SWA
from consilience.data import load
from consilience.data.partition import partition
from consilience.data.partitioners import ShardsTwoClasses
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.models import MLP, Logistic, ModelSpec


@pytest.fixture(scope="module")
def digits():
    return load("mnist-sample")


def rise(
    digits,
    method: Algorithm,
    *,
    graph: bool,
    rounds: int,
    batch_size: int,
    holdout: float,
    model: ModelSpec | None = None,
    lr: float = 0.05,
) -> float:
    """How much the test accuracy (the mean over nodes on a graph) rises above the initial one."""
    scene = Scene(
        dataset=digits,
        build=lambda: (model or MLP((64,))).build(digits.shape, 10),
        partitions={0: partition(ShardsTwoClasses(holdout=holdout), digits.targets.numpy(), 10, 0)},
        topology=ErdosRenyi(p=0.5) if graph else Star(),
        work=LocalWork(1, None, batch_size),
        participation=10,
        init="different" if graph else "common",
    )
    simulation = simulate(scene, [(method, SGD(lr))])
    before = simulation.evaluate()[0]["test_accuracy"]
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return simulation.evaluate()[0]["test_accuracy"] - before


@pytest.mark.parametrize(
    ("method", "rounds", "margin"),
    [
        (FedAvg(), 6, 0.5),
        (FedProx(), 6, 0.5),
        (FedCurv(), 6, 0.5),
        (Scaffold(), 6, 0.5),
        (HWA(), 6, 0.5),
        (FisherMerge("output"), 6, 0.5),
        (KFACWeighted(), 6, 0.5),
        (FedSSO(), 6, 0.5),
        (SWA(), 6, 0.3),
        (Local(), 2, 0.03),
    ],
    ids=lambda value: value.name if isinstance(value, Algorithm) else "",
)
def test_with_a_server(digits, method, rounds, margin):
    assert rise(digits, method, graph=False, rounds=rounds, batch_size=32, holdout=0.0) > margin


@pytest.mark.parametrize(
    ("method", "margin"),
    [(FedSGD(0.1), 0.3), (FAGH(lr=0.5, row_index="bias0"), 0.5)],
    ids=lambda value: value.name if isinstance(value, Algorithm) else "",
)
def test_with_one_gradient_a_round(digits, method, margin):
    assert rise(digits, method, graph=False, rounds=10, batch_size=600, holdout=0.0) > margin


@pytest.mark.parametrize(
    ("method", "batch_size", "margin"),
    [
        (GIANT(iterations=5), 600, 0.65),
        (DONE(iterations=10), 600, 0.55),
        (DANE(newton_steps=2, iterations=5), 600, 0.55),
        (DANE(solve="inexact"), 32, 0.6),
        (FedDANE(), 32, 0.6),
    ],
    ids=["giant", "done", "dane", "dane-inexact", "feddane"],
)
def test_newton_type_methods_on_a_convex_model(digits, method, batch_size, margin):
    """They are made for such; steps of training are short, since a shifted loss may have no minimum."""
    options = {"graph": False, "rounds": 4, "batch_size": batch_size, "holdout": 0.0}
    assert rise(digits, method, model=Logistic(), lr=0.01, **options) > margin


@pytest.mark.parametrize(
    ("method", "margin"),
    [
        (FedNL(option="floor", line_search=True), 0.3),
        (BL1(), 0.25),
    ],
    ids=["fednl", "bl1"],
)
def test_logistic_regression_with_learned_hessians(digits, method, margin):
    """On images of 7 x 7 pixels: 500 parameters."""
    small = {
        name: F.avg_pool2d(getattr(digits, name).float(), 4).byte() for name in ("inputs", "test_inputs")
    }
    where = {"graph": False, "batch_size": 32, "holdout": 0.0, "model": Logistic()}
    assert rise(replace(digits, **small), method, rounds=5, **where) > margin


@pytest.mark.parametrize(
    ("method", "holdout", "margin"),
    [
        (FedAvg(), 0.0, 0.2),
        (DecHW(), 0.0, 0.1),
        (DecHWStar(2), 0.0, 0.25),
        (DecHW("released"), 0.2, 0.2),
        (FisherMerge(), 0.0, 0.1),
        (KFACWeighted(), 0.0, 0.1),
    ],
    ids=["dechetero", "dechw", "dechw*", "dechw-released", "fisher_merge", "kfac_weighted"],
)
def test_without_a_server(digits, method, holdout, margin):
    assert rise(digits, method, graph=True, rounds=6, batch_size=32, holdout=holdout) > margin
