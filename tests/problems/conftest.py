"""One small federation for each problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs import Complete, Star
from consilience.learning.solvers import SGD
from consilience.testing.federation import ragged_partition

SIZES = (7, 4, 9, 1, 8)
ROWS = sum(SIZES) + 2 * len(SIZES)


class Tokens(nn.Module):
    """Tokens to a prediction of the next one at every place."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.tanh(self.mix(self.embed(x))))
        return logits


@dataclass(frozen=True)
class Case:
    dataset: Dataset
    build: Callable[[], nn.Module]


def dense(inputs: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, outputs))


def _cases() -> dict[str, Case]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS + 20, 5, generator=random)
    slope = torch.randn(5, 3, generator=random)
    real = x @ slope + 0.1 * torch.randn(ROWS + 20, 3, generator=random)
    tokens = torch.cumsum(torch.randint(1, 3, (ROWS + 20, 6), generator=random), 1) % 7
    following = torch.cat([tokens[:, 1:], torch.full((ROWS + 20, 1), -100)], 1)

    def data(name: str, inputs: torch.Tensor, targets: torch.Tensor, **options: object) -> Dataset:
        return Dataset.from_arrays(
            name, inputs[:ROWS], targets[:ROWS], inputs[ROWS:], targets[ROWS:], **options
        )

    return {
        "classification": Case(data("classes", x, real.argmax(1), classes=3), dense(5, 3)),
        "regression": Case(data("numbers", x, real), dense(5, 3)),
        "multi_label": Case(data("labels", x, (real > 0.3).long()), dense(5, 3)),
        "next_token": Case(data("tokens", tokens, following, classes=7), lambda: Tokens(7)),
    }


CASES = _cases()
SOLVER = SGD(0.2, momentum=0.5)


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def federate() -> Callable[..., Simulation]:
    """A simulation of a method on one of the cases."""

    def build(case: Case, method, *, lanes=None, graph=False, solver=SOLVER, holdout=False, **more):
        partition = ragged_partition(SIZES)
        if not holdout:
            partition = Partition(partition.shards, tuple(rows[:0] for rows in partition.holdouts), {}, 0)
        scene = Scene(
            dataset=case.dataset,
            build=case.build,
            partitions={0: partition},
            topology=Complete() if graph else Star(),
            work=LocalWork(epochs=2, steps=None, batch_size=4),
            participation=5,
            normalize="none",
            executor="sequential" if lanes is None else "batched",
            lanes=lanes,
            dtype=torch.float64,
            **more,
        )
        return simulate(scene, [(method, solver)])

    return build


@pytest.fixture
def cases() -> dict[str, Case]:
    """All of them, by the names of their problems."""
    return CASES
