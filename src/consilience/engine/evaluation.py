"""How good are the models: on the global test set, and on each client's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from consilience.client import Fold, Rows, ScoreStep
from consilience.engine.batches import Floats
from consilience.engine.world import World
from consilience.types import State


@dataclass(frozen=True)
class Scores:
    """Accuracy and mean loss of some models."""

    accuracy: Floats
    loss: Floats


def score_on_test(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """Every model (stacked on one axis) on the global test set."""
    return _score(world, models, jobs, "test")


def score_on_own_data(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """Every model on the data of its client: what it held out where it did, else what it trained on."""
    return _score(world, models, jobs, "own")


def _score(world: World, models: State, jobs: Sequence[tuple[int, int]], rows: Rows) -> Scores:
    zeros = torch.zeros(len(jobs), dtype=world.pool.dtype, device=world.device)
    start = {"sum": {"correct": zeros, "loss": zeros, "rows": zeros}}

    def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
        carry, model = states
        return fold(ScoreStep(world.task), carry, model, rows), {}

    total = world.executor.clients(world.cohort(jobs, 0), work, [start, models]).uploads["sum"]
    found = torch.stack([total[name].double() for name in ("correct", "loss", "rows")]).cpu().numpy()
    return Scores(found[0] / found[2], found[1] / found[2])
