"""How good are the models: on the global test set, and on each client's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from consilience.client import Fold, Rows, ScoreStep
from consilience.engine.world import World
from consilience.types import Floats, State


@dataclass(frozen=True)
class Scores:
    """Accuracy and mean loss of some models."""

    accuracy: Floats
    loss: Floats


@dataclass(frozen=True)
class Scored:
    """The scores of many models, each of a (replica, client) pair."""

    prefix: str
    """Of the names of scores; empty for the models that count."""
    rows: list[tuple[int, int]]
    accuracy: Floats
    loss: Floats
    many: bool
    """Whether a replica has many of them, so that their spread is of interest."""

    @classmethod
    def of(cls, prefix: str, rows: list[tuple[int, int]], parts: Sequence[Scores], *, many: bool) -> Scored:
        """From scores of some rows after the other."""
        accuracy = np.concatenate([np.zeros(0), *(part.accuracy for part in parts)])
        loss = np.concatenate([np.zeros(0), *(part.loss for part in parts)])
        return cls(prefix, rows, accuracy, loss, many)

    def summary(self, replica: int) -> dict[str, float]:
        """Means of a replica and, where there are many models, their spread."""
        own = np.array([index == replica for index, _ in self.rows], dtype=np.bool_)
        accuracy, loss = self.accuracy[own], self.loss[own]
        if not len(accuracy):
            return {}
        label = self.prefix or "test_"
        scores = {f"{label}accuracy": float(accuracy.mean()), f"{label}loss": float(loss.mean())}
        if self.many:
            scores |= {
                f"{self.prefix}accuracy_std": float(accuracy.std()),
                f"{self.prefix}accuracy_min": float(accuracy.min()),
                f"{self.prefix}accuracy_max": float(accuracy.max()),
            }
        return scores

    def by_node(self, replica: int, nodes: int) -> list[float]:
        """The accuracy of every node; NaN where there was none."""
        values = np.full(nodes, np.nan)
        for (index, node), accuracy in zip(self.rows, self.accuracy, strict=True):
            if index == replica:
                values[node] = accuracy
        return [float(value) for value in values]


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
