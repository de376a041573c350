"""How good are the models: on the global test set, and on each client's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from consilience.client import Fold, ScoreStep
from consilience.engine.batches import Floats
from consilience.engine.cohort import Cohort
from consilience.engine.world import World
from consilience.types import Batch, State

TEST_ROWS = 1000
"""Rows of the test set that a model sees at a time."""


@dataclass(frozen=True)
class Scores:
    """Accuracy and mean loss of some models."""

    accuracy: Floats
    loss: Floats


def score_on_test(world: World, models: State) -> Scores:
    """Every model (stacked on one axis) on the global test set."""
    totals: dict[str, torch.Tensor] = {}
    for start in range(0, len(world.test), TEST_ROWS):
        rows = torch.from_numpy(world.test[start : start + TEST_ROWS]).to(world.device)
        weight = torch.ones(len(rows), dtype=world.pool.dtype, device=world.device)
        batch = world.pool.batch(rows, weight, torch.zeros((), dtype=torch.int64, device=world.device))

        def score(model: State, batch: Batch = batch) -> State:
            return {"sum": world.task.score(model, batch)._asdict()}

        part = world.executor.map(score, (0,), models)["sum"]
        totals = {
            name: totals[name] + value.double() if totals else value.double() for name, value in part.items()
        }
    return Scores(
        (totals["correct"] / len(world.test)).cpu().numpy(), (totals["loss"] / len(world.test)).cpu().numpy()
    )


def score_on_own_data(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """Every model on the data of its client: what it held out where it did, else what it trained on."""
    cohort = Cohort(tuple(world.job(*job) for job in jobs), 0, world.work, world.device)
    zeros = torch.zeros(len(jobs), dtype=world.pool.dtype, device=world.device)
    start = {"sum": {"correct": zeros, "loss": zeros, "rows": zeros}}

    def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
        carry, model = states
        return fold(ScoreStep(world.task), carry, model, "own"), {}

    total = world.executor.clients(cohort, work, [start, models]).uploads["sum"]
    rows = total["rows"]
    return Scores(
        (total["correct"] / rows).double().cpu().numpy(), (total["loss"] / rows).double().cpu().numpy()
    )
