"""From a configuration to the terms of a federation, and to the data of one of its members."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from consilience import __version__, tree
from consilience.config import Config
from consilience.config.sections import FactsSection
from consilience.data.dataset import Dataset, problem_of
from consilience.data.normalising import normalisation
from consilience.data.partition import Partition, partition
from consilience.data.partitioners.iid import Iid
from consilience.data.stored import Inputs, whole
from consilience.deploy.site import Own, blank_sums
from consilience.deploy.terms import Terms
from consilience.engine.build import adjacency_of, fitted, initial_models, task_of
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.experiment.planning import Arm, arms_of, plan
from consilience.learning.batches import Pool
from consilience.types import IntArray, State

CPU = torch.device("cpu")
AGREED = (
    "method",
    "problem",
    "l2",
    "model",
    "augment",
    "clients",
    "participation",
    "rounds",
    "local",
    "solver",
    "schedule",
    "topology",
    "init",
    "seeds",
    "dtype",
)
"""What of a configuration all members must have alike; the rest is everybody's own affair."""


@dataclass(frozen=True)
class Agreement:
    """The terms of a federation, with what the configuration says beside them."""

    arm: Arm
    terms: Terms
    facts: FactsSection
    device: torch.device
    """Where the member works: its data are there, and what of the model is not trained."""

    @property
    def scene(self) -> Scene:
        """The setting, with one seed."""
        return self.arm.scene

    @cached_property
    def _initial(self) -> State:
        return initial_models(self.scene, self.terms.task, self.terms.seed)

    def initial(self, number: int = 0) -> State:
        """The initial model of a member, or of the server."""
        shared = len(next(iter(self._initial["params"].values()))) == 1
        return tree.index(self._initial, 0 if shared else number)

    def dealt(self, number: int) -> Own:
        """The data that the configuration's partition deals to a client."""
        one = self.scene.partitions[self.terms.seed]
        if not 0 <= number < self.terms.population:
            raise UserError(f"there is no client {number}: there are 0 to {self.terms.population - 1}")
        data, shard, held = self.scene.dataset, one.shards[number], one.holdouts[number]
        rows = torch.from_numpy(np.concatenate([shard, held]))
        inputs = torch.cat([whole(data.inputs), whole(data.test_inputs)])[rows]
        targets = torch.cat([data.targets, data.test_targets])[rows]
        return self._own(inputs, targets, np.arange(len(shard), len(rows), dtype=np.int64))

    def brought(self, data: Dataset) -> Own:
        """All rows of a data set of a member's own; some are kept back as the configuration says."""
        facts = self.facts
        if tuple(facts.shape) != tuple(data.shape):
            raise UserError(
                f"inputs of shape {list(data.shape)} do not fit the federation, which has {facts.shape}"
            )
        if facts.target != list(data.targets.shape[1:]):
            raise UserError(
                f"targets of shape {list(data.targets.shape[1:])} do not fit the federation, which has "
                f"{facts.target}"
            )
        kinds = {"inputs": (data.inputs, facts.inputs), "targets": (data.targets, facts.targets)}
        for name, (values, agreed) in kinds.items():
            if type_name(values) != agreed:  # bytes and shares of 1 would both be normalised as one of them
                raise UserError(
                    f"{name} of type {type_name(values)} do not fit the federation, which has {agreed}"
                )
        some = data.problem.has_classes and data.targets.numel() > 0
        largest = int(data.targets.max()) if some else 0
        if largest >= facts.outputs:
            raise UserError(f"there is a class {largest}, and the federation has 0 to {facts.outputs - 1}")
        holdout = self.arm.config.partition.holdout
        labels = np.zeros(len(data.targets), dtype=np.int64)
        split = partition(Iid(holdout=holdout), labels, 1, self.terms.seed)
        return self._own(whole(data.inputs), data.targets, np.sort(split.holdouts[0]))

    def _own(self, inputs: torch.Tensor, targets: torch.Tensor, holdout: IntArray) -> Own:
        return Own(_pool(inputs.clone(), targets.clone(), self.facts, self.scene.dtype, self.device), holdout)

    @cached_property
    def tested(self) -> tuple[Pool, IntArray] | None:
        """The global test set, where this member has it."""
        data = self.scene.dataset
        if not len(data.test_targets) or self.arm.config.deploy.facts is not None:
            return None
        own = self._own(whole(data.test_inputs), data.test_targets, np.zeros(0, dtype=np.int64))
        return own.pool, np.arange(len(data.test_targets), dtype=np.int64)


def _pool(
    inputs: torch.Tensor, targets: torch.Tensor, facts: FactsSection, dtype: torch.dtype, device: torch.device
) -> Pool:
    shift, scale = (torch.tensor(one, dtype=dtype, device=device) for one in (facts.shift, facts.scale))
    return Pool(inputs.to(device), targets.to(device), shift, scale, dtype)


def agree(config: Config, device: torch.device = CPU) -> Agreement:
    """The terms of the one federation that a configuration describes, for a member that works on a device."""
    found = agreements(config, device)
    if len(found) > 1:
        shown = ", ".join(f"{one.arm.labels[0]} seed {one.terms.seed}" for one in found[:4])
        raise UserError(f"a federation has one method, one seed and one value of each number; here: {shown}")
    return found[0]


def agreements(config: Config, device: torch.device = CPU) -> list[Agreement]:
    """The terms of every method with every seed and number that a configuration has."""
    # The device that it names is that of sites; a server, or whoever writes an app, need not have it.
    here = config.model_copy(update={"device": "cpu"})
    arms = plan(here) if config.deploy.facts is None else _without_data(here, config.deploy.facts)
    return [
        _agreement(
            replace(
                arm,
                config=arm.config.model_copy(update={"device": config.device}),
                variants=(variant,),
                numbers=(numbers,),
                scene=_with_seed(arm.scene, seed),
            ),
            device,
        )
        for arm in arms
        for variant, numbers in zip(arm.variants, arm.numbers, strict=True)
        for seed in arm.scene.seeds
    ]


def _with_seed(scene: Scene, seed: int) -> Scene:
    return replace(scene, partitions={seed: scene.partitions[seed]}, executor="sequential")


def _without_data(config: Config, facts: FactsSection) -> Sequence[Arm]:
    """The arms of a configuration whose data are elsewhere; a blank row stands for everybody's."""
    row = torch.zeros(1, *facts.shape, dtype=getattr(torch, facts.inputs))
    target = torch.zeros(1, *facts.target, dtype=getattr(torch, facts.targets))
    data = Dataset(
        "elsewhere", row, target, row, target, facts.outputs, problem_of(row, target), padding=facts.padding
    )
    nothing = np.zeros(0, dtype=np.int64)
    found: list[Arm] = []
    for setting, one in config.settings():
        everybody = Partition(
            (np.zeros(1, dtype=np.int64),) * one.population, (nothing,) * one.population, {}, 0
        )
        partitions = dict.fromkeys(one.seeds, everybody)
        for choice in one.method:
            found += arms_of(setting, one, choice, data, partitions, streamed=False)
    return found


def _agreement(arm: Arm, device: torch.device) -> Agreement:
    scene, config = arm.scene, arm.config
    (seed,) = scene.seeds
    if scene.network != type(scene.network)():
        raise UserError("network describes a simulated one; a federation has its own: leave it out")
    task = task_of(scene, device)
    ((algorithm, solver),) = fitted(scene.dataset, task, arm.variants)
    facts = config.deploy.facts or facts_of(scene)
    data = scene.dataset
    blank = _pool(data.inputs[:1], data.targets[:1], facts, scene.dtype, device)
    terms = Terms(
        task=task,
        algorithm=algorithm,
        solver=solver,
        work=scene.work,
        seed=seed,
        rounds=config.rounds,
        population=scene.population,
        participation=scene.participation,
        digest=_digest(arm, facts, seed),
        sums=blank_sums(task, blank),
        adjacency=adjacency_of(scene, seed),
    )
    return Agreement(arm, terms, facts, device)


def facts_of(scene: Scene) -> FactsSection:
    """What a scene's data look like, in words that can travel."""
    shift, scale = normalisation(scene.dataset, scene.normalize)
    return FactsSection(
        shape=list(scene.dataset.shape),
        outputs=scene.dataset.outputs,
        inputs=type_name(scene.dataset.inputs),
        targets=type_name(scene.dataset.targets),
        target=list(scene.dataset.targets.shape[1:]),
        padding=scene.dataset.padding,
        shift=shift.tolist(),
        scale=scale.tolist(),
    )


def type_name(values: Inputs) -> str:
    """The type of inputs or targets, in a word."""
    return str(values.dtype).removeprefix("torch.")


def _digest(arm: Arm, facts: FactsSection, seed: int) -> str:
    written = arm.config.written()
    agreed: dict[str, Any] = {key: written[key] for key in AGREED}
    agreed |= {
        "method": f"{arm.variants[0]}",
        "seeds": seed,
        "clients": arm.scene.population,
        "facts": facts.model_dump(mode="json"),
        "problem": f"{arm.scene.task_problem}",
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()
