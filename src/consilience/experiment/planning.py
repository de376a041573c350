"""What a run consists of: every method in every setting."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from consilience import sweeping
from consilience.algorithm import Algorithm, Init
from consilience.config import Config
from consilience.config.entries import MethodChoice
from consilience.config.metrics import made_for
from consilience.data import load
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition, partition
from consilience.data.partitioners.base import Labels
from consilience.data.stored import Inputs, chunks
from consilience.engine.build import check, takes_steps
from consilience.engine.memory import read_size, shown
from consilience.engine.scene import Scene
from consilience.errors import UserError, abridged, unknown
from consilience.exchange.cohort import LocalWork
from consilience.experiment.storing import is_streamed
from consilience.learning.coordinate import Coordinate
from consilience.learning.schedules import Scheduled
from consilience.learning.solvers import Solver
from consilience.models.own import OwnModel
from consilience.models.spec import parameter_count
from consilience.problems import Metric
from consilience.reading import machine_memory
from consilience.report.summary import Goals

LONGEST = 200
"""How many bytes the name of an arm may have in those of files, for which 255 are the most."""
STATES = 4
"""So many models of a size must fit into the memory of a machine that trains one: gradients, sums, ..."""
UNTRAINED = ("epochs", "steps", "stragglers", "lr_decay", "clip")
"""Numbers of `local` that make no difference to a method that never trains."""


@dataclass(frozen=True)
class Arm:
    """One method, with all variants and seeds, in one setting."""

    setting: str
    config: Config
    scene: Scene
    choice: MethodChoice
    variants: tuple[tuple[Algorithm, Solver], ...]
    numbers: tuple[dict[str, object], ...]
    """What is swept, for each of the variants, without the numbers of the setting."""
    training: str = ""
    """The numbers of training that it was given, in words, where it is one arm of several."""
    alone: bool = False
    """Whether it is one of the method's replicas, which cannot share a computation."""

    @property
    def name(self) -> str:
        """Names the arm's files."""
        if self.alone:
            return f"{self.setting} {self.labels[0]} seed {self.scene.seeds[0]}"
        return " ".join(filter(None, (self.setting, self.choice.label, self.training)))

    @property
    def labels(self) -> tuple[str, ...]:
        """What tables call the variants, one for each."""
        told = map(sweeping.label_of, self.numbers)
        return tuple(" ".join(filter(None, (self.choice.label, numbers))) for numbers in told)

    def apart(self) -> list[Arm]:
        """An arm for every replica where the method's states change their shapes, else the arm itself."""
        if not self.variants[0][0].reshapes():
            return [self]
        return [
            replace(
                self,
                scene=replace(self.scene, partitions={seed: self.scene.partitions[seed]}),
                variants=(variant,),
                numbers=(numbers,),
                alone=True,
            )
            for variant, numbers in zip(self.variants, self.numbers, strict=True)
            for seed in self.scene.seeds
        ]

    def who(self, replica: int) -> tuple[str, int]:
        """The label and the seed of a replica."""
        seeds = self.scene.seeds
        return self.labels[replica // len(seeds)], seeds[replica % len(seeds)]

    def swept(self, replica: int) -> dict[str, object]:
        """All swept numbers of a replica, those of its setting first."""
        own = self.numbers[replica // len(self.scene.seeds)]
        return sweeping.apart(self.config.numbers.chosen, own, "method")


def plan(config: Config) -> list[Arm]:
    """The arms of a run, in order. Everything that can be refused is refused here, before the first round."""
    datasets: dict[str | int, Dataset] = {}
    partitions: dict[str, dict[int, Partition]] = {}
    streamed: dict[tuple[str | int, str], bool] = {}
    held: set[tuple[str | int, str]] = set()
    arms = []
    for setting, one in config.settings():
        name = one.data.name if one.data.own is None else id(one.data.own)
        if name not in datasets:
            datasets[name] = one.data.own or load(one.data.name)
        datasets[name].check(one.problem or datasets[name].problem)
        if (name, one.dtype) not in held:
            _check_range(datasets[name], getattr(torch, one.dtype))
            held.add((name, one.dtype))
        key = json.dumps([one.written()[k] for k in ("data", "partition", "seeds")] + [one.population])
        if key not in partitions:
            partitions[key] = split(one, datasets[name])
        if (name, one.data.resident) not in streamed:
            streamed[name, one.data.resident] = is_streamed(one, datasets[name])
        for choice in one.method:
            arms += arms_of(
                setting,
                one,
                choice,
                datasets[name],
                partitions[key],
                streamed=streamed[name, one.data.resident],
            )
    _check_targets(arms, config.targets or ())
    names = [arm.name for arm in arms]
    for name in names:
        if len(quote(name)) > LONGEST:
            raise UserError(
                f"method: {abridged(name)} is too long for a file's name; give it a shorter label"
            )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two methods would both be called {twice!r}; give one a label")
    return arms


def roundings(arms: Sequence[Arm]) -> list[str]:
    """What is rounded where a share of the clients is no whole number of them, one line for each case."""
    lines = []
    for config in (arm.config for arm in arms):
        share, clients = config.participation, config.population
        if isinstance(share, float) and not math.isclose(share * clients, config.participants):
            many = f"{config.participants} client{'s' * (config.participants > 1)}"
            lines.append(
                f"participation {share:g} of {clients} clients is {share * clients:g}: {many} a round"
            )
    return list(dict.fromkeys(lines))


def idle_schedules(arms: Sequence[Arm]) -> list[str]:
    """Where a schedule makes no difference, since a method takes no steps with the solver, in one line."""
    scheduled = [arm for arm in arms if arm.config.schedule is not None]
    idle = [arm for arm in scheduled if not any(takes_steps(arm.scene, pair) for pair in arm.variants)]
    names = ", ".join(dict.fromkeys(arm.choice.label for arm in idle))
    return [f"schedule has no effect on {names}: clients take no steps with the solver there"] if idle else []


def _init(config: Config, choice: MethodChoice) -> Init:
    """How models start: on a graph each with weights of its own, unless they come with weights."""
    fixed = isinstance(config.model, OwnModel) and config.model.fixed
    usual: Init = "common" if fixed or config.topology.name == "star" else "different"
    init = choice.init or config.common or usual
    if fixed and init == "different":
        raise UserError(
            f"init: different needs a model that is made anew for every node: {config.model.name} comes with "
            "its weights, so give its class or a function"
        )
    return init


def _solvers(config: Config) -> list[tuple[Solver, dict[str, object]]]:
    """The solvers of a setting, with their schedules, each with the numbers that tell it from the others."""
    plain = list(zip(config.solver.variants, config.solver.numbers, strict=True))
    if config.schedule is None:
        return plain
    schedules = list(zip(config.schedule.variants, config.schedule.numbers, strict=True))
    return [
        (Scheduled(solver, schedule.over(config.rounds)), sweeping.apart(first, second, "schedule"))
        for solver, first in plain
        for schedule, second in schedules
    ]


def arms_of(
    setting: str,
    config: Config,
    choice: MethodChoice,
    dataset: Dataset,
    partitions: dict[int, Partition],
    *,
    streamed: bool,
) -> list[Arm]:
    """A method in a setting: one arm, or one for each combination of swept numbers of training.

    What a method does not use is not computed again for each value: the first one stands for all.
    """
    init = _init(config, choice)
    _check_size(config, dataset)
    trainings, solvers = config.trainings(), _solvers(config)
    first = replace(_scene(trainings[0][1], dataset, partitions, streamed=streamed), init=init)
    if len(trainings) + len(solvers) > 2:
        pairs = [(algorithm, solvers[0][0]) for algorithm in choice.sweep.variants]
        check(first, pairs)
        if not any(takes_steps(first, pair) for pair in pairs):
            solvers = [(solvers[0][0], dict.fromkeys(solvers[0][1], sweeping.ANY))]
            trainings = _without(UNTRAINED, config)
    arms: list[Arm] = []
    for numbers, one in trainings:
        scene = replace(_scene(one, dataset, partitions, streamed=streamed), init=init)
        variants, told = [], []
        for algorithm, own in zip(choice.sweep.variants, choice.sweep.numbers, strict=True):
            for variant, others in solvers:
                variants.append((algorithm, variant))
                told.append(sweeping.apart(sweeping.apart(own, others, "solver"), numbers, "local"))
        check(scene, variants)
        words = sweeping.label_of(numbers)
        arms += Arm(setting, one, scene, choice, tuple(variants), tuple(told), words).apart()
    return arms


def _check_range(dataset: Dataset, dtype: torch.dtype) -> None:
    """Refuse numbers that a run's type cannot hold: they would become infinite."""
    most = torch.finfo(dtype).max
    for label in ("inputs", "targets", "test_inputs", "test_targets"):
        column: Inputs = getattr(dataset, label)
        if not column.dtype.is_floating_point or torch.finfo(column.dtype).max <= most:
            continue
        largest = max(float(chunk.abs().max()) for chunk in chunks(column) if chunk.numel())
        if largest > most:
            kind = str(dtype).removeprefix("torch.")
            raise UserError(
                f"{dataset.name}: {label} go up to {largest:.3g}, and {kind} holds {most:.3g} at most; scale "
                "them, or set dtype: float64"
            )


def _check_size(config: Config, dataset: Dataset) -> None:
    """Refuse a model that this machine could not train, before it is made."""
    if isinstance(config.model, OwnModel):
        return
    count = parameter_count(config.model, dataset.shape, dataset.outputs)
    most = machine_memory() // STATES
    if count is None or count * getattr(torch, config.dtype).itemsize > most:
        many = "more parameters than can be counted" if count is None else f"{count:,} parameters"
        raise UserError(
            f"model {config.model.name}: {many}, and {shown(most)} is the most for one on this machine; "
            "make its layers smaller"
        )


def _without(unused: Collection[str], config: Config) -> list[tuple[dict[str, object], Config]]:
    """The setting with each combination of numbers of training, but for some that make no difference."""
    found: dict[str, tuple[dict[str, object], Config]] = {}
    for numbers, one in config.trainings():
        told = {key: sweeping.ANY if key in unused else value for key, value in numbers.items()}
        found.setdefault(sweeping.label_of(told), (told, one))
    return list(found.values())


def _check_targets(arms: Sequence[Arm], given: Sequence[float] | Mapping[str, Sequence[float]]) -> None:
    """Refuse settings whose scores cannot stand in one table, and targets that no score can reach."""
    metrics = {arm.scene.task_problem.metric: arm.setting for arm in arms}
    if len(metrics) > 1:
        scores = " and ".join(f"{metric.name} ({setting})" for metric, setting in metrics.items())
        raise UserError(f"the settings of a run must have one score to compare; these have {scores}")
    metric, known = next(iter(metrics)), arms[0].scene.scores
    for name, targets in given.items() if isinstance(given, Mapping) else [(metric.name, given)]:
        if name not in known:
            raise unknown("score among targets", name, known)
        for target in targets:
            check_target("targets", known[name], target)


def check_target(where: str, metric: Metric, target: float) -> None:
    """Refuse a value that a score cannot have."""
    if metric.percent and not 0 < target <= 1:
        raise UserError(f"{where}: {metric.name} {target:g} is not in (0, 1]; write 0.9 for 90 %")


def split(config: Config, dataset: Dataset) -> dict[int, Partition]:
    """The partition of every seed."""
    labels = _labels(config, dataset)
    groups = None if dataset.groups is None else dataset.groups.numpy()
    test_groups = None if dataset.test_groups is None else dataset.test_groups.numpy()
    return {
        seed: partition(
            config.partition,
            labels,
            config.population,
            seed,
            groups=groups,
            test_groups=test_groups,
            names=dataset.clients,
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


def _scene(config: Config, dataset: Dataset, partitions: dict[int, Partition], *, streamed: bool) -> Scene:
    return Scene(
        dataset=dataset,
        build=functools.partial(config.model.build, dataset.shape, dataset.outputs),
        partitions=partitions,
        topology=config.topology,
        work=LocalWork(**config.local.model_dump()),
        participation=config.participants,
        failure_rate=config.failure_rate,
        network=config.network.network(),
        start=None if config.init in (None, "common", "different") else Path(str(config.init)),
        normalize=config.data.normalize,
        streamed=streamed,
        resident=config.memories.resident,
        augment=config.augment,
        executor=config.executor,
        workers=config.workers,
        cluster=config.cluster,
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
        curvature=config.evaluate.curvature,
        metrics=made_for(config.metrics, config.problem or dataset.problem, dataset.outputs),
    )


def aims_of(config: Config, scene: Scene) -> tuple[tuple[float, ...], Goals]:
    """The values of a run's metric that are looked for, and the other scores with theirs.

    Args:
        config: What is asked for.
        scene: Any of the run's: all have one metric.
    """
    problem, given = scene.task_problem, config.targets
    named = given if isinstance(given, dict) else {problem.metric.name: given or []}
    targets = problem.targets if given is None else tuple(named.get(problem.metric.name, ()))
    asked = [one for one in problem.named_scores()[1:] if one.name in named]
    own = [one.metric for one in scene.metrics]
    return targets, {one: tuple(named.get(one.name, ())) for one in (*own, *asked)}
