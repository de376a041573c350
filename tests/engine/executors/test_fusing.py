"""Fused programs compute what the recorded ones compute, in fewer operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.testing import assert_close

from consilience.client import Client
from consilience.config.config import read_config
from consilience.engine.build import simulate
from consilience.engine.executors.fusing import fused
from consilience.engine.executors.lanes import Workshop
from consilience.engine.executors.machine import Blueprint, Machine
from consilience.engine.executors.program import overwriting, record
from consilience.exchange.cohort import LocalWork
from consilience.experiment import plan
from consilience.kernels.descent import decoded
from consilience.learning.batches import Pool
from consilience.learning.solvers import SGD, Adam, RMSprop
from consilience.learning.task import mean_loss
from consilience.types import State

MOMENTUM = {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.001}
PLAIN = {"name": "sgd", "lr": 0.01}
SWEPT = {"name": "sgd", "lr": [0.01, 0.1], "momentum": 0.9}

Program = tuple[str, GraphModule, list[torch.Tensor]]


class Whole(Machine):
    """A machine that records whole steps and runs none."""

    def __init__(self, pool: Pool, blueprint: Blueprint) -> None:
        super().__init__(pool, blueprint, whole=True)

    def run(self, rows, weight, keys, sizes):
        raise NotImplementedError

    def overwriting(self) -> tuple[GraphModule, list[torch.Tensor]]:
        """The program that writes over its arguments, and arguments."""
        batch = self.example(self.blueprint.rows)
        for value in self.arguments:
            value.uniform_(0.01, 0.2) if value.is_floating_point() else value.fill_(1)
        program = self.program(batch, full=False)
        results = [program.result.paths.index(path) for path in self.blueprint.carry.paths]
        return overwriting(program.module, results), [*self.arguments, *batch]


@pytest.fixture
def programs(monkeypatch) -> Callable[[Callable[[], object]], list[Program]]:
    """The programs of many lanes that are needed while something runs, by the name of the step."""

    def watch(run: Callable[[], object]) -> list[Program]:
        seen: list[tuple[Pool, Blueprint]] = []
        build = Workshop._build

        def spy(self: Workshop, blueprint: Blueprint) -> Machine:
            seen.append((self.pool, blueprint))
            return build(self, blueprint)

        with monkeypatch.context() as patch:
            patch.setattr(Workshop, "_build", spy)
            run()
        stacked = [(pool, blueprint) for pool, blueprint in seen if blueprint.width > 1]
        return [
            (type(blueprint.step).__name__, *Whole(pool, blueprint).overwriting())
            for pool, blueprint in stacked
        ]

    return watch


def operations(module: GraphModule) -> Counter[str]:
    return Counter(str(node.target) for node in module.graph.nodes if node.op == "call_function")


def gradients(module: GraphModule) -> Counter[int]:
    """How many updates compute gradients: of weights (2, or 4 from bytes), of biases (1), none (0)."""
    calls = [node for node in module.graph.nodes if "descend" in str(node.target)]
    return Counter(len(update.gradient) for node in calls for update in decoded(node.args[2]))


def compare(module: GraphModule, arguments: list[torch.Tensor], tolerance: float = 1e-12) -> GraphModule:
    """The fused program, which writes the same as the recorded one."""
    other = fused(module)
    plain, quick = ([value.clone() for value in arguments] for _ in range(2))
    with torch.no_grad():
        module(*plain)
        other(*quick)
    assert not all(torch.equal(value, before) for value, before in zip(plain, arguments, strict=True))
    for one, two in zip(plain, quick, strict=True):
        assert_close(one, two, rtol=tolerance, atol=tolerance)
    return other


def simulated(method: str, solver: dict[str, Any], batch: int = 8, hidden: tuple[int, ...] = (12, 9)) -> None:
    config = read_config(
        {
            "data": "mnist-sample",
            "dtype": "float64",
            "method": method,
            "model": {"name": "mlp", "hidden": list(hidden)},
            "clients": 4,
            "rounds": 1,
            "local": {"epochs": 1, "batch_size": batch},
            "solver": solver,
        },
        "test",
    )
    arm = plan(config)[0]
    simulate(arm.scene, arm.variants).step()


@pytest.mark.parametrize(
    ("method", "solver", "batch"),
    [
        ("fedavg", MOMENTUM, 8),
        ("fedavg", PLAIN, 1),
        ("fedavg", {**MOMENTUM, "nesterov": True}, 7),
        ("fedavg", {"name": "adam", "lr": 0.01, "weight_decay": 0.1}, 5),
        ("fedavg", {"name": "adamw", "lr": 0.01}, 5),
        ("fedavg", {"name": "rmsprop", "momentum": 0.9}, 5),
        ("fedavg", {"name": "nesterov"}, 5),
        ("fedavg", SWEPT, 8),
        ("fedprox", MOMENTUM, 8),
        ("fedprox", SWEPT, 8),
        ("scaffold", PLAIN, 8),
        ("fedcurv", MOMENTUM, 8),
        ("feddyn", MOMENTUM, 8),
        ("moon", MOMENTUM, 8),
    ],
)
def test_training_steps_of_dense_models_are_fused(programs, method, solver, batch):
    found = programs(lambda: simulated(method, solver, batch))
    steps = [(module, arguments) for name, module, arguments in found if name == "TrainStep"]
    assert steps
    for module, arguments in steps:
        other = compare(module, arguments)
        assert gradients(other) == {4: 1, 2: 2, 1: 3, 0: gradients(other)[0]}
        counts = operations(other)
        assert counts["consilience.dense_lanes_backward.default"] == 2
        assert counts["consilience.descend.default"] == 1
        assert counts["aten.bmm.default"] == 0
        assert counts["consilience.classify_lanes.default"] == 1
        assert not counts.keys() & {"aten.gather.default", "aten.scatter.value", "aten._log_softmax.default"}


@pytest.mark.parametrize("method", ["fedcurv", "fagh", "fedlin", "pfedme", "hwa"])
def test_other_steps_compute_the_same(programs, method):
    found = programs(lambda: simulated(method, MOMENTUM if method in ("fedcurv", "hwa") else PLAIN))
    assert found
    for _, module, arguments in found:
        compare(module, arguments)


class Tied(nn.Module):
    """A network that uses the same weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(72, 72)
        self.last = nn.Linear(72, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.first(x.flatten(1)).relu()).tanh())


class Late(nn.Module):
    """A network whose weights are computed from its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1))
        self.weight = nn.Parameter(torch.randn(3, 72))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ (self.weight * self.scale).T


def train(client: Client, down: State) -> State:
    return client.train(down).model


@pytest.mark.parametrize(
    "solver", [SGD(0.1, momentum=0.9, weight_decay=0.01), Adam(0.1), RMSprop(0.1, centered=True)]
)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("module", ["mlp", "cnn", "batchnorm", "dropout", Tied(), Late()])
def test_whatever_is_not_understood_stays(programs, federation, module, clip, solver):
    work = LocalWork(epochs=1, steps=None, batch_size=4, clip=clip)
    one = federation(module, work=work)
    for _, program, arguments in programs(lambda: one.run(one.batched(), train, solver)):
        other = compare(program, arguments)
        assert operations(other)["consilience.descend.default"] >= 1
        if clip is not None:  # gradients are read twice
            assert not gradients(other).keys() & {2, 4}


def test_gradients_that_are_read_elsewhere_stay_in_memory():
    weight, grad, x = torch.randn(2, 3, 4), torch.randn(2, 5, 3), torch.randn(2, 5, 4)

    def step(weight, largest, grad, x):
        product = grad.transpose(1, 2) @ x
        return [weight - 0.1 * product, product.amax((1, 2))]

    arguments = [weight, torch.zeros(2), grad, x]
    other = compare(overwriting(record(step, arguments), [0, 1]), arguments, 1e-6)
    assert gradients(other) == {0: 1}


def test_what_another_update_writes_is_read_before():
    def step(a, b):
        return [a + 0.5 * b, b + 2 * a]

    arguments = [torch.randn(2, 3), torch.randn(2, 3)]
    module = overwriting(record(step, arguments), [0, 1])
    assert operations(compare(module, arguments))["consilience.descend.default"] == 0


def test_transposed_arguments_are_read_before_they_are_written():
    def step(a, b):
        return [a + a.transpose(1, 2), b.transpose(1, 2)]

    arguments = [torch.randn(2, 3, 3), torch.randn(2, 3, 3)]
    compare(overwriting(record(step, arguments), [0, 1]), arguments)


def test_numbers_of_lanes_and_shared_tensors_are_expanded():
    def step(weight, rate, shared):
        return [weight - rate[:, None, None] * (weight - shared) / 3]

    arguments = [torch.randn(2, 3, 4), torch.randn(2), torch.randn(3, 4)]
    other = compare(overwriting(record(step, arguments), [0]), arguments, 1e-6)
    assert operations(other)["consilience.descend.default"] == 1


def test_inputs_with_a_scale_for_each_channel_are_computed_first():
    def step(weight, images, grad):
        x = (images.to(torch.float64) - scale) / scale
        return [weight - 0.1 * (grad.transpose(1, 2) @ x.flatten(2))]

    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None, None]
    images = torch.randint(0, 256, (3, 5, 2, 2, 2), dtype=torch.uint8)
    weight, grad = (torch.randn(3, *shape, dtype=torch.float64) for shape in ((4, 8), (5, 4)))
    arguments = [weight, images, grad]
    assert gradients(compare(overwriting(record(step, arguments), [0]), arguments)) == {2: 1}


def test_integers_are_left_alone():
    arguments = [torch.ones(2, dtype=torch.int64), torch.ones(2)]
    module = overwriting(record(lambda a, b: [a + 1, b * 2], arguments), [0, 1])
    assert gradients(compare(module, arguments)) == {0: 1}


def test_rounded_products_are_fused():
    weight, bias, x, grad = (torch.randn(2, *shape) for shape in ((3, 4), (3,), (5, 4), (5, 3)))

    def step(weight, bias, x, grad):
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.func.grad(
                lambda w, b: (nn.functional.linear(x, w, b).relu().float() * grad).sum(), argnums=(0, 1)
            )
            of_weight, of_bias = loss(weight, bias)
        return [weight - 0.1 * of_weight, bias - 0.1 * of_bias]

    arguments = [weight, bias, x, grad]
    module = overwriting(record(torch.func.vmap(step), arguments), [0, 1])
    other = compare(module, arguments, 0.02)
    assert gradients(other) == {2: 1, 1: 1}


def losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "known"),
    [
        (lambda z, t, w: mean_loss(losses(z, t), w), True),
        (lambda z, t, w: 3 + mean_loss(losses(z, t), w) * 0.5, True),
        (lambda z, t, w: mean_loss(losses(z.sin(), t), w) + z.square().sum(), True),
        (lambda z, t, w: mean_loss(losses(z, t), w) ** 2, False),
        (lambda z, t, w: mean_loss(losses(z, t), w + w), True),
        (lambda z, t, w: losses(z, t).mean(), False),
        (lambda z, t, w: mean_loss(losses(z.log_softmax(0), t), w), True),
        (lambda z, t, w: mean_loss(nn.functional.cross_entropy(z, t, w[:5], reduction="none"), w), False),
        (
            lambda z, t, w: mean_loss(
                nn.functional.cross_entropy(z, t, reduction="none", label_smoothing=0.1), w
            ),
            False,
        ),
    ],
)
def test_only_mean_losses_of_classification_problems_are_fused(loss, known):
    def step(logits, total, targets, weight):
        grad, value = torch.func.grad_and_value(lambda z: loss(z, targets, weight))(logits)
        return [logits - grad, total + value * weight.sum()]

    weight = torch.tensor([1.0, 0.5, 0, 1, 0, 2, 1]).repeat(2, 1).double()
    logits, targets = torch.randn(2, 7, 5, dtype=torch.float64), torch.randint(0, 5, (2, 7))
    arguments = [logits, torch.zeros(2, dtype=torch.float64), targets, weight]
    other = compare(overwriting(record(torch.func.vmap(step), arguments), [0, 1]), arguments)
    assert operations(other)["consilience.classify_lanes.default"] == known


class Sequences(nn.Module):
    """A transformer, part of which is frozen, with a recurrent layer after it; over rows of images."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(28, 8).requires_grad_(False)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.encoder.linear1.requires_grad_(False)
        self.recurrent, self.head = nn.GRU(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.encoder(self.embed(x[:, 0, ::4])))[1][0])


@pytest.mark.parametrize("solver", [PLAIN, MOMENTUM], ids=["plain", "momentum"])
def test_models_of_other_layers_are_fused_where_they_can_be(programs, solver):
    settings = {
        "data": "mnist-sample",
        "dtype": "float64",
        "method": "fedavg",
        "model": Sequences,
        "clients": 4,
        "rounds": 1,
        "lanes": 4,
        "local": {"steps": 2, "batch_size": 8},
        "solver": solver,
    }
    arm = plan(read_config(settings))[0]
    found = programs(lambda: simulate(arm.scene, arm.variants).step(evaluate=False))
    assert found
    for _, module, arguments in found:
        other = compare(module, arguments, 1e-10)
        assert operations(other)["consilience.classify_lanes.default"] == 1
