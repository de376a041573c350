"""Schedules of learning rates: their formulas, per round and per step, in every executor, and swept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms import METHODS
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fednova import FedNova
from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.experiment import plan
from consilience.graphs.star import Star
from consilience.learning.schedules import (
    Constant,
    Cosine,
    Exponential,
    Schedule,
    Scheduled,
    StepDecay,
)
from consilience.learning.solvers import SGD, Adam, Solver

BATCH, SIZES = 4, (8, 12, 5)


def factors(schedule: Schedule, count: int, steps: float = 1.0) -> torch.Tensor:
    times = torch.arange(count, dtype=torch.float64)
    return torch.stack([schedule.factor(now, torch.tensor(steps).double()) for now in times])


def theirs(make, count: int) -> torch.Tensor:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimiser), []
    for _ in range(count):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (Cosine(length=10.0, floor=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.1)),
        (Cosine(), lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
        (StepDecay(every=3, gamma=0.5), lambda o: lr_scheduler.StepLR(o, 3, 0.5)),
        (Exponential(gamma=0.9), lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        (Constant(warmup=4), lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 3)),
    ],
)
def test_the_formulas_are_those_of_torch(ours: Schedule, make):
    assert_close(factors(ours.over(10), 10), theirs(make, 10), rtol=1e-12, atol=1e-15)


def test_a_warm_up_comes_first_and_is_part_of_the_length():
    warm = factors(Cosine(length=10.0, warmup=2, floor=0.2), 12)
    assert_close(warm[:2], torch.tensor([0.5, 1.0]).double())
    assert_close(warm[2:], factors(Cosine(length=8.0, floor=0.2), 10))
    assert_close(warm[-2:], torch.tensor([0.2, 0.2]).double())
    assert_close(factors(Cosine(per="step"), 6, 6.0), factors(Cosine(length=6.0), 6))


def scene(executor: str = "batched", **work) -> Scene:
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(SIZES), 6, generator=random, dtype=torch.float64)
    targets = torch.randint(0, 3, (sum(SIZES),), generator=random)
    rows = torch.arange(sum(SIZES)).split(SIZES)
    shards = tuple(one.numpy() for one in rows)
    return Scene(
        dataset=Dataset.from_arrays("made", inputs, targets, inputs[:4], targets[:4], classes=3),
        build=lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        partitions={0: Partition(shards, tuple(one[:0] for one in shards), {}, 0)},
        topology=Star(),
        work=LocalWork(2, None, BATCH, **work),
        participation=len(SIZES),
        normalize="none",
        dtype=torch.float64,
        executor=executor,
    )


def played(where: Scene, method, solver: Solver, rounds: int = 3):
    simulation = simulate(where, [(method, solver)])
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return simulation


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("schedule", [Cosine(length=4.0, warmup=1), StepDecay(every=2, gamma=0.3)])
@pytest.mark.parametrize("solver", [SGD(0.2, momentum=0.5), Adam(0.05)])
def test_a_schedule_per_round_is_a_solver_of_that_rate(executor, schedule, solver):
    where = scene(executor)
    falling = simulate(where, [(METHODS["fedprox"](), Scheduled(solver, schedule))])
    for now in factors(schedule, 4).tolist():
        plain = simulate(where, [(METHODS["fedprox"](), replace(solver, lr=solver.lr * now))])
        plain.restore(falling.snapshot())
        falling.step(evaluate=False)
        plain.step(evaluate=False)
        assert_close(falling.hub, plain.hub, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_a_schedule_per_step_is_torchs_own(executor):
    """One client and one batch: every step is a step of torch's optimiser with torch's scheduler."""
    where = scene(executor)
    shards = (where.partitions[0].shards[0],)
    where = replace(
        where,
        partitions={0: Partition(shards, (shards[0][:0],), {}, 0)},
        work=LocalWork(None, 5, 100),
        participation=1,
    )
    schedule = Cosine(per="step", floor=0.1, warmup=1)
    simulation = simulate(where, [(FedAvg(), Scheduled(SGD(0.5, momentum=0.9), schedule))])
    start = {name: value[0].clone() for name, value in simulation.hub["params"].items()}
    module = where.build().double()
    module.load_state_dict(start)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    rates = factors(schedule, 5, 5.0)
    inputs, targets = where.dataset.inputs[shards[0]].double(), where.dataset.targets[shards[0]]
    for rate in rates.tolist():
        optimiser.param_groups[0]["lr"] = 0.5 * rate
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimiser.step()
    simulation.step(evaluate=False)
    found = {name: value[0] for name, value in simulation.hub["params"].items()}
    assert_close(found, dict(module.named_parameters()), rtol=1e-10, atol=1e-12, check_dtype=False)


METHODS_THAT_KNOW_RATES = ["fedavg", "scaffold", "feddc", "pfedme", "fedsso", "fedlin"]


@pytest.mark.parametrize("name", METHODS_THAT_KNOW_RATES)
@pytest.mark.parametrize("per", ["round", "step"])
def test_executors_agree_and_sweeps_are_single_runs(name: str, per):
    method = METHODS[name]()
    swept = [Scheduled(SGD(0.1), StepDecay(per=per, every=2.0, gamma=g, warmup=1)) for g in (0.3, 0.9)]
    together = simulate(scene(), [(method, solver) for solver in swept])
    for _ in range(3):
        together.step(evaluate=False)
    for place, solver in enumerate(swept):
        alone = played(scene("sequential"), method, solver)
        assert_close(tree.index(together.hub, place), tree.index(alone.hub, 0), rtol=1e-9, atol=1e-11)


def test_scaffold_divides_by_the_rates_that_were_used():
    """A control after one round is what a client moved, divided by the sum of its learning rates."""
    where = scene()
    simulation = played(
        where, METHODS["scaffold"](), Scheduled(SGD(0.1), Exponential(per="step", gamma=0.5)), 1
    )
    before = played(where, METHODS["scaffold"](), SGD(0.1), 0)
    steps = [4.0, 6.0, 4.0]
    moved = tree.sub(before.hub["params"], simulation.hub["params"])
    lengths = [0.1 * sum(0.5**t for t in range(int(count))) for count in steps]
    controls = simulation.store.snapshot()["memory.control"]
    # The hub moved by the mean of what clients moved, and a control is a client's move over its length.
    for name, value in moved.items():
        weights = torch.tensor(lengths, dtype=torch.float64).reshape(-1, *[1] * (value.ndim - 1))
        assert_close((weights * controls[name]).mean(0), value[0], rtol=1e-10, atol=1e-13)


def test_fednova_refuses_rates_that_differ_within_a_round():
    with pytest.raises(UserError, match=r"fednova: it reckons with steps .* schedule\.per to round"):
        simulate(scene(), [(FedNova(), Scheduled(SGD(0.1), Cosine(per="step")))])
    played(scene(), FedNova(), Scheduled(SGD(0.1), Cosine(length=5.0)), 1)


def test_a_schedule_in_a_configuration():
    config = read_config({"schedule": {"name": "cosine", "floor": [0.0, 0.1], "warmup": 2}, "rounds": 7})
    (arm,) = plan(config)
    assert arm.labels == ("fedavg floor=0.0", "fedavg floor=0.1")
    assert [solver for _, solver in arm.variants] == [
        Scheduled(SGD(), Cosine(floor=floor, warmup=2, length=7.0)) for floor in (0.0, 0.1)
    ]
    assert config.written()["schedule"]["length"] is None
    assert read_config(config.written()).schedule == config.schedule
    assert plan(read_config({}))[0].variants[0][1] == SGD()
    with pytest.raises(UserError, match="unknown schedule 'cosin'"):
        read_config({"schedule": "cosin"})
    with pytest.raises(UserError, match="warmup must be at least 0"):
        read_config({"schedule": {"name": "step", "warmup": -1}})
