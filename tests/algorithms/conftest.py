"""Small federations in which a method's properties can be seen exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from consilience.algorithm import Algorithm
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import Scene, simulate
from consilience.engine.cohort import LocalWork
from consilience.engine.simulation import Simulation
from consilience.solver import SGD, Solver
from consilience.topology import Star

FEATURES, CLASSES = 6, 3
RAGGED = (7, 3, 10, 1, 5)
EVERYTHING = 1000
"""A batch size above every client's number of samples."""


def mlp() -> nn.Module:
    """Smooth, so that it can be differentiated twice."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def normalised_mlp() -> nn.Module:
    """With batch normalisation between its two linear layers."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def logistic() -> nn.Module:
    """One linear layer: a convex problem."""
    return nn.Linear(FEATURES, CLASSES)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "normalised": normalised_mlp,
    "logistic": logistic,
}


@pytest.fixture
def scene() -> Callable[..., Scene]:
    """Makes star scenes of clients whose inputs and classes differ; `dataclasses.replace` does the rest."""

    def make(
        *,
        sizes: Sequence[int] = RAGGED,
        module: str = "mlp",
        epochs: int = 2,
        batch_size: int = 4,
        holdout: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> Scene:
        random = np.random.default_rng(0)
        held = [size + holdout for size in sizes]
        owner = np.repeat(np.arange(len(sizes)), held)
        inputs = random.normal(size=(len(owner), FEATURES)) + 0.5 * random.normal(size=(len(sizes), FEATURES))[owner]
        targets = (owner + random.integers(0, 2, len(owner))) % CLASSES
        data = Dataset.from_arrays(
            "made", inputs, targets, random.normal(size=(20, FEATURES)), random.integers(0, CLASSES, 20)
        )
        rows = np.split(np.arange(len(owner)), np.cumsum(held)[:-1])
        shards = tuple(mine[:size] for mine, size in zip(rows, sizes, strict=True))
        holdouts = tuple(mine[size:] for mine, size in zip(rows, sizes, strict=True))
        return Scene(
            dataset=data,
            build=MODULES[module],
            partitions={0: Partition(shards, holdouts, {}, 0)},
            topology=Star(),
            work=LocalWork(epochs, None, batch_size),
            participation=len(sizes),
            normalize="none",
            dtype=dtype,
        )

    return make


@pytest.fixture
def play() -> Callable[..., Simulation]:
    """Runs a method in a scene for some rounds."""

    def run(
        scene: Scene, algorithm: Algorithm, rounds: int = 3, solver: Solver | None = None
    ) -> Simulation:
        simulation = simulate(scene, [(algorithm, solver or SGD(0.1))])
        for _ in range(rounds):
            simulation.step(evaluate=False)
        return simulation

    return run
