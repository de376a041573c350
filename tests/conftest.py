"""Shared by all tests: one thread, reproducible hypothesis, and a tiny federation to experiment on."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure
from torch import nn

from consilience import tree
from consilience.client import Client
from consilience.engine.determinism import Precision
from consilience.engine.executors.base import Errand, Executor, Outcome
from consilience.engine.executors.lanes import Batched
from consilience.engine.executors.sequential import Sequential
from consilience.engine.spread.leg import Leg, Make, Ran, Runner
from consilience.engine.spread.worker import Arrays
from consilience.exchange.cohort import Cohort, Job, LocalWork
from consilience.exchange.device import FACTS, facts_of
from consilience.learning.batches import Pool
from consilience.learning.solvers import SGD, Solver
from consilience.learning.task import Task
from consilience.testing import DoesNotApplyError
from consilience.types import State

torch.set_num_threads(1)
settings.register_profile("consilience", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("consilience")

SHAPE = (2, 6, 6)
CLASSES = 3
TWO_EPOCHS = LocalWork(epochs=2, steps=None, batch_size=4)

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(27, CLASSES)
    ),
    "batchnorm": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, CLASSES)
    ),
    "dropout": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Dropout2d(0.3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, CLASSES),
    ),
}

Action = Callable[[Client, State], State]
"""From a client and what it was sent to its upload."""


@dataclass(frozen=True)
class Federation:
    """A task, the model to start from, data, and the jobs of one round."""

    task: Task
    start: State
    pool: Pool
    cohort: Cohort

    def sequential(self) -> Executor:
        return Sequential(self.pool)

    def batched(self, lanes: int = 100, chunk: int = 100, workers: int = 1) -> Executor:
        return Batched(self.pool, lanes, chunk, workers)

    def run(
        self, executor: Executor, action: Action, solver: Solver | None = None, own: State | None = None
    ) -> Outcome:
        """Every job's action on the start; `own` are stacked tensors of which every job is sent its row."""
        jobs, facts = len(self.cohort.jobs), facts_of(self.cohort, self.task.dtype)
        sent = tree.map_leaves(lambda value: value.expand(jobs, *value.shape).contiguous(), self.start)

        def work(fold, rows):
            down, own_rows, own_facts = rows
            epochs = self.cohort.work.epochs or 0
            client = Client(
                self.task,
                solver or SGD(0.1),
                own_facts[FACTS]["samples"],
                own_facts[FACTS]["steps"],
                epochs,
                fold,
                own_facts[FACTS]["key"],
                own_facts[FACTS]["common_key"],
                clip=self.cohort.work.clip,
            )
            return action(client, {**down, **own_rows}), {}

        return executor.clients(self.cohort, Errand(work), [sent, own or {}, facts])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that wait for processes come first, so that at the end nobody waits for them."""
    slow = ("tests/scorecard/", "tests/deploy/flower/test_processes", "tests/engine/spread/test_on_ray")
    items.sort(key=lambda item: not item.nodeid.startswith(slow))


def pytest_collection_finish() -> None:
    """What was imported stays; to look for garbage in it again and again would take a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A property of the conformance suite that says nothing about a method is skipped, with the reason."""
    try:
        return (yield)
    except DoesNotApplyError as reason:
        pytest.skip(str(reason))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Whatever a test draws from torch's default generator does not depend on the tests before it."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes a hundred times as long where no GPU is


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures become empty files: to paint one takes longer than a tiny run, and few tests look at it."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())


@pytest.fixture
def network() -> Callable[[str], nn.Module]:
    """A small module by name (see NETWORKS), from inputs [batch, 2, 6, 6] to 3 classes, always the same."""

    def build(name: str) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return NETWORKS[name]()

    return build


@pytest.fixture
def federation(network: Callable[[str], nn.Module]) -> Callable[..., Federation]:
    """Makes federations in float64 on random data, by default of ragged clients."""

    def build(
        module: str | nn.Module = "mlp",
        *,
        sizes: Sequence[int] = (7, 3, 10, 1, 5),
        holdout: int = 0,
        work: LocalWork = TWO_EPOCHS,
        inputs: torch.Tensor | None = None,
    ) -> Federation:
        dtype, total = torch.float64, sum(sizes) + holdout * len(sizes)
        random = torch.Generator().manual_seed(1)
        if inputs is None:
            inputs = torch.randint(0, 256, (total, *SHAPE), dtype=torch.uint8, generator=random)
        targets = torch.randint(0, CLASSES, (len(inputs),), generator=random)
        levels = 127.5 if inputs.dtype == torch.uint8 else 0.0
        shift, scale = torch.tensor(levels, dtype=dtype), torch.tensor(levels or 1.0, dtype=dtype)
        plain = network(module) if isinstance(module, str) else module
        task = Task(plain, dtype)
        cuts = np.cumsum([0, *(size + holdout for size in sizes)])
        jobs = tuple(
            Job(0, 0, client, np.arange(begin, end - holdout), np.arange(end - holdout, end))
            for client, (begin, end) in enumerate(pairwise(cuts))
        )
        pool = Pool(inputs, targets, shift, scale, dtype)
        return Federation(
            task, task.weights_of(plain), pool, Cohort(jobs, 0, work, torch.device("cpu"), np.arange(0))
        )

    return build


@pytest.fixture
def interpreted() -> Callable[[str], None]:
    """What runs Python code with Triton's interpreter, where Triton is, and fails if it does."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")

    def run(code: str) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}  # read when Triton is imported
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()

    return run


class HandsHere:
    """Workers of this process; each answer is worked out when somebody asks for it, in turns.

    Args:
        count: How many there are; who dies is replaced.
        deadly: The numbers of the legs in which a worker dies, with all that it had.
    """

    def __init__(self, count: int, deadly: Collection[int] = ()) -> None:
        self.deadly = deadly
        self.workers = [Runner() for _ in range(count)]
        self.asked: deque[tuple[int, Runner, Leg, Any, Arrays | None]] = deque()
        self.legs: list[Leg] = []
        self.sent = 0
        self.most = 0
        """How many were at work at once."""

    def there(self) -> list[Any]:
        return list(self.workers)

    def expected(self) -> int:
        return len(self.workers)

    def hand_out(self, make: Make, precision: Precision) -> Any:
        return make, precision

    def ask(self, worker: Any, leg: Leg, made: Any, start: Arrays | None) -> Any:
        self.sent += 1
        self.asked.append((self.sent, worker, leg, made, start))
        self.most = max(self.most, len({id(one[1]) for one in self.asked if one[1] in self.workers}))
        return self.sent

    def answers(self, *, wait: bool) -> list[tuple[Any, Ran | None]]:
        if not wait:
            return []
        ticket, worker, leg, made, start = self.asked.popleft()
        self.legs.append(leg)
        if worker in self.workers and len(self.legs) in self.deadly:
            self.workers[self.workers.index(worker)] = Runner()
        if worker not in self.workers:
            return [(ticket, None)]
        return [(ticket, worker.run(leg, lambda: made, start))]

    def forget(self, worker: Any, course: int) -> None:
        worker.forget(course)

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def hands() -> Callable[..., HandsHere]:
    """Makes such workers."""
    return HandsHere
