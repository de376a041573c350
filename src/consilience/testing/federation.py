"""Tiny ragged federations in which methods are checked, and how their results are compared."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience import tree
from consilience.algorithm import Algorithm, Conditions
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.executors.lanes import Batched
from consilience.engine.memory import Resident
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.base import Topology
from consilience.graphs.complete import Complete
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD, Solver
from consilience.models.logistic import Logistic
from consilience.models.mlp import MLP
from consilience.models.spec import Classifier
from consilience.types import State

SIZES = (7, 4, 3, 1, 8)
"""How many training samples each client has."""
HELD_OUT = 2
"""How many samples each client keeps back, where the method asks for it."""
INPUTS, IMAGES, CLASSES = (6,), (1, 4, 4), 3
"""The shape of an input, also of the built-in convolutional model's, and the number of classes."""
WORK = LocalWork(epochs=2, steps=None, batch_size=4)
SHORT_WORK = LocalWork(epochs=1, steps=None, batch_size=4)
"""The local work where a second epoch would show nothing new."""
TOLERANCE = 1e-9
"""The largest difference in float64 that is rounding, relative to the largest number of its tensor."""
SOLVERS: tuple[Solver, ...] = (SGD(0.1, momentum=0.5, weight_decay=0.01), SGD(0.1))
TOPOLOGIES: tuple[Topology, ...] = (Star(), Ring(), Complete())

Module = Callable[[], nn.Module]


@dataclass(frozen=True)
class Subject:
    """A method under test, and settings that it accepts."""

    algorithm: Algorithm
    solver: Solver
    module: Module
    topologies: tuple[Topology, ...]
    holdout: bool
    device: torch.device

    def refusal(
        self, algorithm: Algorithm, solver: Solver, topology: Topology, *, unreliable: bool = False
    ) -> str | None:
        """Why another variant cannot work in this setting, or None."""
        return algorithm.refuse(
            Conditions(
                graph=not isinstance(topology, Star),
                solver=solver,
                epochs=WORK.epochs,
                holdout=self.holdout,
                unreliable=unreliable,
            )
        )

    @property
    def some(self) -> int:
        """How many clients a partial cohort has; all where the method needs everybody."""
        star = self.topologies[0]
        return 100 if self.refusal(self.algorithm, self.solver, star, unreliable=True) else 3

    @property
    def symmetric(self) -> tuple[Topology, ...]:
        """The topologies in which all clients have the same place."""
        return tuple(topology for topology in self.topologies if not isinstance(topology, Ring))


Property = Callable[[Subject], None]
"""A check that raises an AssertionError where a method lacks the property."""


class DoesNotApplyError(Exception):
    """A property says nothing about this method; the message says why."""


def perceptron() -> nn.Module:
    """The model that methods are checked with by default."""
    return MLP((8,)).build(INPUTS, CLASSES)


def linear() -> nn.Module:
    """The model that methods are checked with that are for models of one linear layer alone."""
    return Logistic().build(INPUTS, CLASSES)


def convolutional() -> nn.Module:
    """The model with batch normalisation and dropout."""
    # No bias: batch normalisation takes it out again, and its gradient would be rounding errors alone.
    body = (nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
    return Classifier(nn.Sequential(*body), nn.Linear(12, CLASSES))


@dataclass(frozen=True)
class Layout:
    """A federation in which a method is run."""

    topology: Topology = field(default_factory=Star)
    partitions: dict[int, Partition] = field(default_factory=lambda: {0: ragged_partition(SIZES)})
    """The partitions, by seed."""
    participation: int = 100
    work: LocalWork = SHORT_WORK
    dtype: torch.dtype = torch.float64
    images: bool = False
    """Whether the model is the built-in convolutional one."""
    lanes: int = 0
    """How many clients train side by side; 0: one after the other."""
    chunk: int = 100
    """How many clients are computed at a time, where there are lanes."""
    resident: Resident = "auto"
    """Whether what clients remember is held in memory."""


def simulation_of(subject: Subject, layout: Layout, *variants: tuple[Algorithm, Solver]) -> Simulation:
    """A simulation of some variants before its first round; by default of the subject's method alone."""
    scene = Scene(
        dataset=clouds(IMAGES if layout.images else INPUTS),
        build=convolutional if layout.images else subject.module,
        partitions={
            seed: one if subject.holdout else dataclasses.replace(one, holdouts=nothing(one))
            for seed, one in layout.partitions.items()
        },
        topology=layout.topology,
        work=layout.work,
        participation=layout.participation,
        normalize="none",
        executor="sequential",
        resident=layout.resident,
        device=subject.device,
        dtype=layout.dtype,
    )
    simulation = simulate(scene, variants or ((subject.algorithm, subject.solver),))
    if not layout.lanes:
        return simulation
    batched = Batched(simulation.world.pool, layout.lanes, layout.chunk)
    return Simulation(dataclasses.replace(simulation.world, executor=batched), simulation.algorithm)


def clouds(shape: tuple[int, ...]) -> Dataset:
    """Three overlapping clouds of points; neighbouring rows are of different classes."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(100) % CLASSES
    centres, spread = (
        torch.randn(count, *shape, generator=random, dtype=torch.float64) for count in (CLASSES, 100)
    )
    inputs = centres[targets] + spread
    return Dataset.from_arrays("clouds", inputs, targets, inputs[:9], targets[:9], classes=CLASSES)


def ragged_partition(sizes: Sequence[int], first: int = 0) -> Partition:
    """The partition whose clients have these numbers of training rows, one after the other."""
    cuts = first + np.cumsum([0, *(size + HELD_OUT for size in sizes)])
    rows = [np.arange(begin, end, dtype=np.int64) for begin, end in itertools.pairwise(cuts)]
    return Partition(tuple(r[HELD_OUT:] for r in rows), tuple(r[:HELD_OUT] for r in rows), {}, 0)


def nothing(partition: Partition) -> tuple[Any, ...]:
    """The held-out rows of clients that keep none back: no rows for each."""
    return tuple(rows[:0] for rows in partition.holdouts)


def play(simulation: Simulation, rounds: int) -> list[State]:
    """The hub, the memories and the training losses of every replica (variant and seed) after some rounds."""
    losses: list[dict[str, Tensor]] = [{} for _ in simulation.world.replicas]
    for _ in range(rounds):
        for record in simulation.step(evaluate=False):
            if record.train_loss is not None:
                loss = torch.tensor(record.train_loss, dtype=torch.float64)
                losses[record.replica][f"round {record.round}"] = loss
    return [{**state_of(simulation, replica), "loss": known} for replica, known in enumerate(losses)]


def state_of(simulation: Simulation, replica: int = 0) -> State:
    """A replica's hub and memories, and what its nodes remember of each other."""
    count = simulation.world.population
    clients, pairs = (np.arange(rows) + replica * rows for rows in (count, count**2))
    hub, memories = tree.index(simulation.hub, replica), simulation.store.load(clients)
    links = tree.reshape_leading(simulation.links.load(pairs), 1, count, count)
    return {
        f"{prefix}.{group}": params
        for prefix, state in (("hub", hub), ("memory", memories), ("link", links))
        for group, params in state.items()
    }


def of_clients(simulation: Simulation, state: State, clients: Sequence[int]) -> State:
    """A replica's state with some of its clients alone, in some order."""
    chosen = torch.tensor(clients, device=simulation.world.device)
    own = ("hub.", "memory.") if simulation.world.graph else ("memory.",)
    found = {
        group: {name: value[chosen] for name, value in params.items()} if group.startswith(own) else params
        for group, params in state.items()
    }
    links = {group: params for group, params in state.items() if group.startswith("link.")}
    return found | tree.map_leaves(lambda value: value[chosen][:, chosen], links)


def assert_close(expected: State, found: State, what: str) -> None:
    """Assert that two states are equal up to rounding; `what` begins the message if they are not."""
    for path, value, other in pairs_of(expected, found, what):
        if not value.is_floating_point():
            assert torch.equal(value, other), f"{what}, {path} differs."
        elif value.numel():
            gap, scale = float((value - other).abs().max()), float(value.abs().max())
            assert gap <= TOLERANCE * scale, f"{what}, {path} of scale {scale:.3g} differs by {gap:.3g}."


def assert_same(expected: State, found: State, what: str) -> None:
    """Assert that two states are equal bit for bit; `what` begins the message if they are not."""
    for path, value, other in pairs_of(expected, found, what):
        assert torch.equal(value, other), f"{what}, {path} is not the same bit for bit."


def pairs_of(expected: State, found: State, what: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Corresponding tensors of two states, which must have the same names."""
    left, right = tree.flatten(expected), tree.flatten(found)
    assert left.keys() == right.keys(), f"{what}, there is {sorted(right)} instead of {sorted(left)}."
    for path, value in left.items():
        kinds = [f"{one.dtype} {tuple(one.shape)}" for one in (value, right[path])]
        assert kinds[0] == kinds[1], f"{what}, {path} is {kinds[1]} instead of {kinds[0]}."
        yield path, value, right[path]
