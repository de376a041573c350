"""A setting in which methods are simulated, described; `build` makes a world of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from consilience.algorithm import Init
from consilience.data.dataset import Dataset
from consilience.data.normalising import Normalisation
from consilience.data.partition import Partition
from consilience.engine.determinism import Precision
from consilience.engine.memory import Resident
from consilience.engine.network import Network
from consilience.exchange.cohort import LocalWork
from consilience.graphs.base import Topology
from consilience.learning.augmentations import Augmentation
from consilience.learning.coordinate import Coordinate
from consilience.metrics import Score, Whole
from consilience.problems import Metric, Problem

ExecutorName = Literal["auto", "batched", "sequential", "ray", "ray-sequential"]
"""`ray`: workers that are batched; `ray-sequential`: workers that are sequential."""


@dataclass(frozen=True)
class Scene:
    """Everything about a setting but the methods."""

    dataset: Dataset
    build: Callable[[], nn.Module]
    """Makes a model, with weights from torch's default generator."""
    partitions: Mapping[int, Partition]
    """Who holds which data, by seed."""
    topology: Topology
    work: LocalWork
    participation: int
    """How many clients take part in a round, at most."""
    failure_rate: float = 0.0
    """How likely the upload of a client is lost in a round."""
    network: Network = field(default_factory=Network)
    init: Init = "common"
    start: Path | None = None
    """A file of weights from which all models start."""
    normalize: Normalisation = "auto"
    augment: tuple[Augmentation, ...] = ()
    """How the inputs of training batches are varied."""
    streamed: bool = False
    """Whether inputs are read as batches need them, and not held on the device."""
    executor: ExecutorName = "auto"
    workers: int | None = None
    """How many workers of a cluster there are; None: one a GPU, or one a core."""
    cluster: str = "auto"
    """The address of a Ray cluster; `auto`: the one that runs here, or a new one; `local`: a new one."""
    lanes: int | None = None
    """How many clients train side by side; None: as many as memory allows."""
    resident: Resident = "auto"
    """Whether what clients remember is held in memory, or kept in files."""
    memory: int | None = None
    """How many bytes of the device may be used; None: what is free."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    problem: Problem | None = None
    """What is to be learned; None: as the data set says."""
    l2: float = 0.0
    """The weight of `|params|^2 / 2` in the loss that is minimised."""
    precision: Precision = "fp32"
    compiled: bool | None = False
    """Whether steps are compiled, on a GPU; None: where that pays. Those that fill it are not."""
    rounds: int = 1
    """How many rounds are ahead."""
    coordinates: tuple[Coordinate, ...] = ()
    """Parameters whose curvature and weight are recorded at every node of a graph."""
    curvature: bool = False
    """Whether every client's curvature is recorded at the end, output by output."""
    metrics: tuple[Score | Whole, ...] = ()
    """Scores beside those of the problem."""

    @property
    def task_problem(self) -> Problem:
        """The problem, with the options that follow from the data filled in."""
        data = self.dataset
        return (self.problem or data.problem).for_data(data.targets, data.outputs)

    @property
    def scores(self) -> dict[str, Metric]:
        """All scores by name: those of the problem, and those beside them."""
        found = (*self.task_problem.named_scores(), *(one.metric for one in self.metrics))
        return {one.name: one for one in found}

    @property
    def seeds(self) -> list[int]:
        """The seeds, in their order."""
        return list(self.partitions)

    @property
    def population(self) -> int:
        """The number of clients."""
        return len(next(iter(self.partitions.values())).shards)
