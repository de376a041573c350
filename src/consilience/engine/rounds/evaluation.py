"""How good are the models: on the global test set, and on each client's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from consilience import tree
from consilience.client import Fold, Rows, ScoreStep
from consilience.engine.world import World
from consilience.problems import Metric
from consilience.problems.base import LOSS
from consilience.transfer import Late
from consilience.types import Booleans, Floats, State

Scores = Callable[[], Mapping[str, Floats]]
"""The scores of some models, by the scores' names; a GPU is not waited for until somebody asks."""


@dataclass(frozen=True)
class Scored:
    """The scores of many models, each of a (replica, client) pair."""

    prefix: str
    """What stands before the names of scores; empty for the models that count."""
    rows: list[tuple[int, int]]
    parts: Sequence[Scores]
    """Those of parts of the rows, which were scored one after the other."""
    metric: Metric
    many: bool
    """Whether a replica has many of them, so that their spread is of interest."""

    @cached_property
    def scores(self) -> Mapping[str, Floats]:
        """The scores of all rows, by name."""
        found = [part() for part in self.parts]
        names = found[0] if found else ()
        return {name: np.concatenate([part[name] for part in found]) for name in names}

    def summary(self, replica: int) -> dict[str, float]:
        """The mean scores of a replica and, where it has many models, the spread of the metric."""
        own = np.array([index == replica for index, _ in self.rows], dtype=np.bool_)
        if not own.any():
            return {}
        label = self.prefix or "test_"
        means = {f"{label}{name}": float(self._of(name, own).mean()) for name in self.scores}
        if not self.many:
            return means
        values, name = self._of(self.metric.name, own), f"{self.prefix}{self.metric.name}"
        with np.errstate(invalid="ignore"):  # models that have diverged
            spread = {"std": values.std(), "min": values.min(), "max": values.max()}
        return means | {f"{name}_{kind}": float(value) for kind, value in spread.items()}

    def _of(self, name: str, chosen: Booleans) -> Floats:
        """A score of some models, without those whose rows do not define it (an area from one row, say).

        A model that has diverged, whose loss is not finite, stays in: a mean must not hide it.
        """
        values, sane = self.scores[name][chosen], np.isfinite(self.scores[LOSS][chosen])
        defined = values[~(np.isnan(values) & sane)]
        return defined if len(defined) else values[:1]

    def by_node(self, replica: int, nodes: int) -> list[float]:
        """The metric of every node; NaN where there was none."""
        found = np.full(nodes, np.nan)
        for (index, node), value in zip(self.rows, self.scores.get(self.metric.name, ()), strict=True):
            if index == replica:
                found[node] = value
        return [float(value) for value in found]


def score_on_test(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """The scores of every model (stacked on one axis) on the global test set."""
    return _score(world, models, jobs, "test")


def score_on_own_data(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """The scores of every model on its client's data: those it held out if any, else those it trained on."""
    return _score(world, models, jobs, "own")


def _score(world: World, models: State, jobs: Sequence[tuple[int, int]], rows: Rows) -> Scores:
    blank = {"sum": world.blank_tally}
    start = tree.map_leaves(lambda value: value.expand(len(jobs), *value.shape).contiguous(), blank)

    def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
        carry, model = states
        return fold(ScoreStep(world.task), carry, model, rows), {}

    outcome = world.executor.clients(world.cohort(jobs, 0), work, [start, models], key=("score", rows))
    scores = world.task.problem.scores(outcome.uploads["sum"])
    late = Late([torch.stack(list(scores.values()))])  # one transfer for all
    return lambda: dict(zip(scores, late.get()[0], strict=True))
