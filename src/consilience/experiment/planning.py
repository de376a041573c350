"""What a run consists of: every method in every setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from consilience.algorithm import Algorithm, Init
from consilience.config import Config
from consilience.config.entries import MethodChoice
from consilience.data import load
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition, partition
from consilience.data.partitioners.base import Labels
from consilience.engine.build import check
from consilience.engine.memory import read_size
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.learning.coordinate import Coordinate
from consilience.learning.solvers import Solver
from consilience.models.own import OwnModel


@dataclass(frozen=True)
class Arm:
    """One method, with all variants and seeds, in one setting."""

    setting: str
    config: Config
    scene: Scene
    choice: MethodChoice
    variants: tuple[tuple[Algorithm, Solver], ...]
    labels: tuple[str, ...]
    """What tables call the variants, one for each."""
    alone: bool = False
    """Whether it is one of the method's replicas, which cannot share a computation."""

    @property
    def name(self) -> str:
        """Names the arm's files."""
        if self.alone:
            return f"{self.setting} {self.labels[0]} seed {self.scene.seeds[0]}"
        return f"{self.setting} {self.choice.label}"

    def apart(self) -> list[Arm]:
        """An arm for every replica where the method's states change their shapes, else the arm itself."""
        if not self.variants[0][0].reshapes():
            return [self]
        return [
            replace(
                self,
                scene=replace(self.scene, partitions={seed: self.scene.partitions[seed]}),
                variants=(variant,),
                labels=(label,),
                alone=True,
            )
            for variant, label in zip(self.variants, self.labels, strict=True)
            for seed in self.scene.seeds
        ]

    def who(self, replica: int) -> tuple[str, int]:
        """The label and the seed of a replica."""
        seeds = self.scene.seeds
        return self.labels[replica // len(seeds)], seeds[replica % len(seeds)]


def plan(config: Config) -> list[Arm]:
    """The arms of a run, in order. Everything that can be refused is refused here, before the first round."""
    datasets: dict[str, Dataset] = {}
    partitions: dict[str, dict[int, Partition]] = {}
    arms = []
    for setting, one in config.settings():
        name = one.data.name
        if name not in datasets:
            datasets[name] = one.data.own or load(name)
        datasets[name].check(one.problem or datasets[name].problem)
        key = json.dumps([one.written()[k] for k in ("data", "partition", "seeds")] + [one.population])
        if key not in partitions:
            partitions[key] = split(one, datasets[name])
        scene = _scene(one, datasets[name], partitions[key])
        for choice in one.method:
            own_scene = replace(scene, init=_init(one, choice))
            pairs = [
                ((algorithm, solver), " ".join(filter(None, (choice.label, first, second))))
                for algorithm, first in zip(choice.sweep.variants, choice.sweep.labels, strict=True)
                for solver, second in zip(one.solver.variants, one.solver.labels, strict=True)
            ]
            variants, labels = zip(*pairs, strict=True)
            check(own_scene, variants)
            arms += Arm(setting, one, own_scene, choice, variants, labels).apart()
    _check_targets(arms, config.targets or ())
    names = [arm.name for arm in arms]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two methods would both be called {twice!r}; give one a label")
    return arms


def _init(config: Config, choice: MethodChoice) -> Init:
    """How models start: on a graph each with weights of its own, unless they come with weights."""
    fixed = isinstance(config.model, OwnModel) and config.model.fixed
    usual: Init = "common" if fixed or config.topology.name == "star" else "different"
    init = choice.init or config.init or usual
    if fixed and init == "different":
        raise UserError(
            f"init: different needs a model that is made anew for every node: {config.model.name} comes with "
            "its weights, so give its class or a function"
        )
    return init


def _check_targets(arms: Sequence[Arm], targets: Sequence[float]) -> None:
    """Refuse settings whose scores cannot stand in one table, and targets that no score can reach."""
    metrics = {arm.scene.task_problem.metric: arm.setting for arm in arms}
    if len(metrics) > 1:
        scores = " and ".join(f"{metric.name} ({setting})" for metric, setting in metrics.items())
        raise UserError(f"the settings of a run must have one score to compare; these have {scores}")
    metric = next(iter(metrics))
    for target in targets:
        if metric.percent and not 0 < target <= 1:
            raise UserError(f"targets: {metric.name} {target} is not in (0, 1]; write 0.9 for 90 %")


def split(config: Config, dataset: Dataset) -> dict[int, Partition]:
    """The partition of every seed."""
    labels = _labels(config, dataset)
    groups = None if dataset.groups is None else dataset.groups.numpy()
    test_groups = None if dataset.test_groups is None else dataset.test_groups.numpy()
    return {
        seed: partition(
            config.partition, labels, config.population, seed, groups=groups, test_groups=test_groups
        )
        for seed in config.seeds
    }


def _labels(config: Config, dataset: Dataset) -> Labels:
    """[rows] what a partitioner goes by; all alike where the problem has nothing to go by."""
    problem, needs = config.problem or dataset.problem, config.partition.needs
    if needs == "classes" and not problem.has_classes:
        raise UserError(
            f"partition {config.partition.name} deals classes, and {problem.name} has none: "
            f"choose iid, {'shards, ' if dataset.targets.ndim == 1 else ''}sizes or by_writer"
        )
    if dataset.targets.ndim == 1:
        column = dataset.targets.cpu()
        return (column.double() if column.is_floating_point() else column).numpy()
    if needs == "order":
        raise UserError(
            f"partition {config.partition.name} sorts rows by their target, and those of {problem.name} have "
            "no order: choose iid, sizes or by_writer"
        )
    return np.zeros(len(dataset.targets), dtype=np.int64)


def _scene(config: Config, dataset: Dataset, partitions: dict[int, Partition]) -> Scene:
    return Scene(
        dataset=dataset,
        build=lambda: config.model.build(dataset.shape, dataset.outputs),
        partitions=partitions,
        topology=config.topology,
        work=LocalWork(**config.local.model_dump()),
        participation=config.participants,
        failure_rate=config.failure_rate,
        network=config.network.network(),
        normalize=config.data.normalize,
        executor=config.executor,
        lanes=config.lanes,
        memory=None if config.memory is None else read_size(config.memory),
        device=config.torch_device,
        dtype=getattr(torch, config.dtype),
        problem=config.problem,
        l2=config.l2,
        precision=config.precision,
        compiled=None if config.compile == "auto" else config.compile == "always",
        rounds=config.rounds,
        coordinates=tuple(Coordinate.parse(text) for text in config.evaluate.coordinates),
    )
