"""Small federations in which a method's properties can be seen exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from consilience import tree
from consilience.algorithm import Algorithm, Inbox
from consilience.algorithms.fedavg import FedAvg
from consilience.data import load
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition, partition
from consilience.data.partitioners import ShardsTwoClasses
from consilience.engine.build import simulate
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.star import Star
from consilience.learning.batches import Visit, training_plan
from consilience.learning.solvers import SGD, Solver
from consilience.learning.task import Task
from consilience.models import MLP, VGG11, LeNet5, ModelSpec
from consilience.types import Batch, Params, State

FEATURES, CLASSES = 6, 3

MODULES: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
    "deep": lambda: nn.Sequential(
        nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)
    ),
    "normalised": lambda: nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)
    ),
    "logistic": lambda: nn.Linear(FEATURES, CLASSES),
}


@pytest.fixture
def scene() -> Callable[..., Scene]:
    """Makes star scenes of clients whose inputs and classes differ; `dataclasses.replace` does the rest."""

    def make(
        *,
        sizes: Sequence[int] = (7, 3, 10, 1, 5),
        module: str = "mlp",
        epochs: int = 2,
        batch_size: int = 4,
        holdout: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> Scene:
        random = np.random.default_rng(0)
        held = [size + holdout for size in sizes]
        owner = np.repeat(np.arange(len(sizes)), held)
        shift = 0.5 * random.normal(size=(len(sizes), FEATURES))
        inputs = random.normal(size=(len(owner), FEATURES)) + shift[owner]
        targets = (owner + random.integers(0, 2, len(owner))) % CLASSES
        test = random.normal(size=(20, FEATURES)), random.integers(0, CLASSES, 20)
        rows = np.split(np.arange(len(owner)), np.cumsum(held)[:-1])
        shards = tuple(mine[:size] for mine, size in zip(rows, sizes, strict=True))
        holdouts = tuple(mine[size:] for mine, size in zip(rows, sizes, strict=True))
        return Scene(
            dataset=Dataset.from_arrays("made", inputs, targets, *test, classes=CLASSES),
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
def quadratic(scene: Callable[..., Scene]) -> Callable[..., Scene]:
    """Makes scenes of linear regressions, whose losses are quadratic; `alike`: all clients hold the same."""

    def make(*, alike: bool = False, **options: Any) -> Scene:
        where = scene(**{"sizes": (9, 12, 10), "epochs": 1, "batch_size": 100, **options})
        random = np.random.default_rng(1)
        shards = where.partitions[0].shards
        inputs = where.dataset.inputs.numpy().copy()
        if alike:
            for shard in shards:
                inputs[shard] = inputs[shards[0]]
        targets = inputs @ random.normal(size=FEATURES) + random.normal(size=len(inputs))
        dataset = Dataset.from_arrays("quadratic", inputs, targets, inputs[:5], targets[:5])
        return replace(where, dataset=dataset, build=lambda: nn.Linear(FEATURES, 1))

    return make


@dataclass(frozen=True)
class Derivatives:
    """The gradients and Hessians of all clients' mean losses at one point, over flat parameters."""

    gradients: torch.Tensor
    """[clients, parameters]."""
    hessians: torch.Tensor
    """[clients, parameters, parameters]."""
    shares: torch.Tensor
    """[clients] of the data."""

    @property
    def mean(self) -> torch.Tensor:
        """The gradient of all data."""
        return self.shares @ self.gradients


@pytest.fixture
def derivatives() -> Callable[[Scene, Params], Derivatives]:
    """Finds what clients' losses say at a point, by autograd."""

    def find(where: Scene, params: Params) -> Derivatives:
        module, problem = where.build().to(where.dtype), where.task_problem
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for shard in where.partitions[0].shards:
            inputs, targets = where.dataset.inputs[shard].to(where.dtype), where.dataset.targets[shard]

            def loss(
                vector: torch.Tensor, inputs: torch.Tensor = inputs, targets: torch.Tensor = targets
            ) -> torch.Tensor:
                outputs = torch.func.functional_call(module, tree.divided(vector, params), (inputs,))
                return problem.losses(outputs, targets).mean()

            flat = tree.concatenated(params)
            found.append((torch.func.grad(loss)(flat), torch.func.hessian(loss)(flat)))
        gradients, hessians = (torch.stack(one) for one in zip(*found, strict=True))
        sizes = torch.tensor([len(shard) for shard in where.partitions[0].shards], dtype=where.dtype)
        return Derivatives(gradients, hessians, sizes / sizes.sum())

    return find


@dataclass(frozen=True)
class Round:
    """What one round did to a server's parameters, flat."""

    before: Params
    step: torch.Tensor
    """How far the round moved them, with the sign of a gradient."""


@pytest.fixture
def one_round(play: Callable[..., Simulation]) -> Callable[..., Round]:
    """Plays one round of a method, by default from the start of a scene."""

    def run(where: Scene | Simulation, algorithm: Algorithm | None = None, **options: Any) -> Round:
        simulation = where if isinstance(where, Simulation) else play(where, algorithm, 0, **options)
        before = tree.index(simulation.hub, 0)["params"]
        simulation.step(evaluate=False)
        after = tree.index(simulation.hub, 0)["params"]
        return Round(before, tree.concatenated(before) - tree.concatenated(after))

    return run


@pytest.fixture
def play() -> Callable[..., Simulation]:
    """Runs a method in a scene for some rounds, by default with plain SGD."""

    def run(scene: Scene, algorithm: Algorithm, rounds: int = 3, solver: Solver | None = None) -> Simulation:
        simulation = simulate(scene, [(algorithm, solver or SGD(0.1))])
        for _ in range(rounds):
            simulation.step(evaluate=False)
        return simulation

    return run


@pytest.fixture
def inbox() -> Callable[..., Inbox]:
    """Makes what a server (or a node, where its number is given) hears from clients with some samples."""

    def make(messages: State, sizes: Sequence[int], node: int | None = None) -> Inbox:
        weights = torch.as_tensor(sizes, dtype=torch.float64)
        others = weights.clone()
        if node is not None:
            others[node] = 0
        return Inbox(
            messages,
            weights / weights.sum(),
            others / others.sum().clamp(min=1),
            None if node is None else tree.index(messages, node),
            len(sizes),
        )

    return make


def initial(scene: Scene) -> Params:
    """The parameters with which the scene's first client starts."""
    start = simulate(scene, [(FedAvg(), SGD())]).world.initial[0]
    return {name: value[0] for name, value in start["params"].items()}


@pytest.fixture
def centralised() -> Callable[..., Params]:
    """Plain autograd training on the data of client 0, momentum anew every round."""

    def train(scene: Scene, rounds: int, solver: SGD | None = None, mu: float = 0.0) -> Params:
        solver = solver or SGD(0.1)
        module = scene.build().to(scene.dtype)
        module.load_state_dict(initial(scene))
        values = list(module.parameters())
        inputs, targets = scene.dataset.inputs.to(scene.dtype), scene.dataset.targets
        work, shard = scene.work, scene.partitions[0].shards[0]
        for number in range(rounds):
            anchors = [value.detach().clone() for value in values]
            velocities = [torch.zeros_like(value) for value in values]
            visit = Visit(0, number, 0, shard)
            order = training_plan([visit], [range(work.epochs)], None, work.batch_size, torch.device("cpu"))
            for padded, size in zip(order.rows, order.sizes, strict=True):
                rows = padded[:size]
                loss = F.cross_entropy(module(inputs[rows]), targets[rows])
                grads = torch.autograd.grad(loss, values)
                with torch.no_grad():
                    for value, grad, anchor, velocity in zip(values, grads, anchors, velocities, strict=True):
                        pull = mu * (value - anchor) + solver.weight_decay * value
                        velocity.copy_(solver.momentum * velocity + grad + pull)
                        value.copy_(value - solver.lr * velocity)
        return {name: value.detach() for name, value in module.named_parameters()}

    return train


@dataclass(frozen=True)
class Learned:
    """What a method learned on real digits, over some seeds."""

    rise: float
    """Mean test accuracy above the initial model's."""
    behind: float
    """How far it is behind FedAvg in the same setting."""


@functools.cache
def _digits_accuracy(method: Algorithm, solver: Solver, rounds: int, seeds: int) -> tuple[float, float]:
    """Mean test accuracy before and after, of ten clients with two digits each."""
    digits = load("mnist-sample")
    labels = digits.targets.numpy()
    where = Scene(
        dataset=digits,
        build=lambda: MLP((64,)).build(digits.shape, 10),
        partitions={seed: partition(ShardsTwoClasses(), labels, 10, seed) for seed in range(seeds)},
        topology=Star(),
        work=LocalWork(1, None, 32),
        participation=10,
    )
    simulation = simulate(where, [(method, solver)])
    before = simulation.evaluate()
    for _ in range(rounds):
        simulation.step(evaluate=False)
    means = [
        float(np.mean([seed["test_accuracy"] for seed in when])) for when in (before, simulation.evaluate())
    ]
    return means[0], means[1]


@pytest.fixture
def learned() -> Callable[..., Learned]:
    """Trains a method on the bundled digits, two classes a client, and FedAvg beside it."""

    def learn(method: Algorithm, solver: Solver | None = None, rounds: int = 8, seeds: int = 3) -> Learned:
        solver = solver or SGD(0.05)
        before, after = _digits_accuracy(method, solver, rounds, seeds)
        return Learned(after - before, _digits_accuracy(FedAvg(), solver, rounds, seeds)[1] - after)

    return learn


def _permuted(params: Params, random: torch.Generator) -> Params:
    """The same network with the units of every hidden layer in another order."""
    moved, order = dict(params), None
    *hidden, last = tree.weight_layers(params)
    for names in (*hidden, last):
        for name in names:
            value = moved[name]
            if value.ndim > 1 and order is not None:
                value = value.reshape(len(value), len(order), -1)[:, order].reshape(value.shape)
            moved[name] = value
        if names != last:
            order = torch.randperm(len(moved[names[0]]), generator=random)
            moved |= {name: moved[name][order] for name in names}
    return moved


@dataclass(frozen=True)
class Network:
    """A model as a function of its parameters, on some inputs."""

    task: Task
    model: State
    batch: Batch

    def __call__(self, params: Params) -> torch.Tensor:
        return self.task.forward({"params": params, "buffers": {}}, self.batch, training=False).prediction

    @property
    def params(self) -> Params:
        return self.model["params"]

    def permuted(self, count: int, seed: int = 0) -> list[Params]:
        """Networks that compute the same, with their hidden units in other orders."""
        random = torch.Generator().manual_seed(seed)
        return [_permuted(self.params, random) for _ in range(count)]


CHAINS: dict[str, tuple[ModelSpec, tuple[int, ...]]] = {
    "mlp": (MLP((20, 15)), (6,)),
    "lenet5": (LeNet5(), (3, 32, 32)),
    "vgg11": (VGG11(batch_norm=False), (3, 32, 32)),
    "vgg11-gamf": (VGG11(batch_norm=False, bias=False), (3, 32, 32)),
}


@pytest.fixture
def plain_chain() -> Callable[..., Network]:
    """Makes a network whose hidden units can change places, and some inputs."""

    def make(name: str, dtype: torch.dtype = torch.float64) -> Network:
        spec, shape = CHAINS[name]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = spec.build(shape, CLASSES)
            inputs = torch.randn(4, *shape, dtype=dtype)
        task = Task(module, dtype)
        rows = torch.zeros(4, dtype=torch.int64)
        return Network(task, task.weights_of(module), Batch(inputs, rows, inputs.new_ones(4), rows[0]))

    return make
