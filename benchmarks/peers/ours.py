"""Contestant: Consilience, through `Scene` and `simulate`, with its defaults (executor `auto`).

The partition, the graph and the initial weights are handed in from the setting's files; cohorts are drawn by
the library, and the files hold what it draws. Metrics that a record always has (losses, bytes) are computed
within the timed rounds.

Warm-up: one round, after which the simulation goes back to what it was before, as from a checkpoint.
Environment: OMP_WAIT_POLICY=PASSIVE, as the Makefile sets it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import networkx as nx
import numpy as np
import torch
from common import Task, load, parser, report, since_start
from torch import nn

import consilience as cs
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork, sample_clients
from consilience.graphs.base import Topology
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.models import MLP, MnistCNN

SEED = 0


@dataclass(frozen=True, eq=False)
class Given(Topology):
    """The graph of the setting's files."""

    name: ClassVar[str] = "given"
    matrix: np.ndarray
    nodes: int | None = None

    def graph(self, nodes: int, random: np.random.Generator) -> nx.Graph[int]:
        return nx.from_numpy_array(self.matrix)


def simulation_of(task: Task) -> Simulation:
    """The setting as a simulation of Consilience's, before its first round."""
    setting = task.setting
    dataset = cs.Dataset.from_arrays(
        "mnist", task.images, task.labels, task.test_images, task.test_labels, classes=10
    )

    def build() -> nn.Module:
        spec = MLP(hidden=(200, 200)) if setting.model == "mlp" else MnistCNN(dropout=False)
        model = spec.build(dataset.shape, dataset.outputs)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), task.weights, strict=True):
                parameter.copy_(torch.from_numpy(value))
        return model

    nobody = tuple(np.empty(0, dtype=np.int64) for _ in task.shards)
    scene = Scene(
        dataset=dataset,
        build=build,
        partitions={SEED: Partition(task.shards, nobody, recipe={}, dropped=0)},
        topology=Given(task.adjacency) if setting.graph else Star(),
        work=LocalWork(epochs=1, steps=None, batch_size=setting.batch_size),
        participation=setting.participants,
        normalize="half",
    )
    solver = SGD(lr=setting.lr, momentum=setting.momentum, weight_decay=setting.weight_decay)
    return simulate(scene, [(cs.FedAvg(), solver)])


def check_cohorts(task: Task) -> None:
    """Stop if the library would not draw the cohorts that everybody else is told."""
    everyone = np.arange(task.setting.clients)
    for number, cohort in enumerate(task.cohorts):
        assert (sample_clients(SEED, number, everyone, task.setting.participants) == cohort).all()


def main() -> None:
    chosen = parser().parse_args()
    task = load(chosen.files, chosen.setting, chosen.rounds)
    check_cohorts(task)
    simulation = simulation_of(task)
    initial = simulation.snapshot()
    simulation.step(evaluate=False)
    simulation.restore(initial)
    startup, seconds = since_start(), []
    for number in range(task.rounds):
        begin = time.perf_counter()
        (record,) = simulation.step(evaluate=False)
        seconds.append(time.perf_counter() - begin)
        assert record.samples == task.samples(number)
    (scores,) = simulation.evaluate()
    report(chosen.out, task, startup, seconds, scores["test_accuracy"], ("consilience", "torch", "numpy"))


if __name__ == "__main__":
    main()
