"""How good are the models: on the global test set, and on each client's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from consilience import tree
from consilience.client import Fold, Rows, ScoreStep
from consilience.engine.executors.base import Errand
from consilience.engine.world import World
from consilience.exchange.cohort import TEST_ROWS
from consilience.problems import Metric
from consilience.problems.base import LOSS
from consilience.transfer import Late, to_device
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


def score_on_holdout(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """The scores of every model on the rows that its client keeps back; each client must have some."""
    return _score(world, models, jobs, "holdout")


def score_on_training(world: World, models: State, jobs: Sequence[tuple[int, int]]) -> Scores:
    """The scores of every model on the rows that its client trains on."""
    return _score(world, models, jobs, "samples")


def scoring(world: World, rows: Rows) -> Errand:
    """What is done to score models on some rows, from blank sums and a model."""

    def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
        carry, model = states
        return fold(ScoreStep(world.task), carry, model, rows), {}

    def operations() -> int:
        shape = torch.Size((1, *world.pool.inputs.shape[1:]))
        return world.task.trace(shape, world.pool.given_dtype).operations

    alike = frozenset({0})
    return Errand(work, key=("score", rows), order=rows, alike=alike, operations=operations)


def _score(world: World, models: State, jobs: Sequence[tuple[int, int]], rows: Rows) -> Scores:
    blank = {"sum": world.blank_tally}
    start = tree.map_leaves(lambda value: value.expand(len(jobs), *value.shape).contiguous(), blank)

    outcome = world.executor.clients(world.cohort(jobs, 0), scoring(world, rows), [start, models])
    scores = world.task.scores(outcome.uploads["sum"])
    late = Late([torch.stack(list(scores.values()))])  # one transfer for all
    more = _of_all_rows(world, models, jobs, rows)
    return lambda: dict(zip(scores, late.get()[0], strict=True)) | more


def _of_all_rows(
    world: World, models: State, jobs: Sequence[tuple[int, int]], rows: Rows
) -> dict[str, Floats]:
    """The scores that need all rows at once, model by model."""
    found: dict[str, Floats] = {one.metric.name: np.full(len(jobs), np.nan) for one in world.whole}
    for place, job in enumerate(world.cohort(jobs, 0).jobs if world.whole else ()):
        numbers = world.test if rows == "test" else job.rows(rows)
        if not len(numbers):
            continue
        chosen = to_device(numbers, world.device)
        outputs = _outputs(world, tree.index(models, place), chosen).cpu()
        targets = world.pool.targets[chosen].cpu()
        for one in world.whole:
            found[one.metric.name][place] = one(outputs, targets)
    return found


def _outputs(world: World, model: State, rows: torch.Tensor) -> torch.Tensor:
    """[rows, ...] what a model gives for some rows, computed some at a time."""
    key = torch.zeros((), dtype=torch.int64, device=world.device)
    parts = []
    with torch.no_grad():
        for some in torch.split(rows, TEST_ROWS):
            weight = torch.ones(len(some), dtype=world.pool.dtype, device=world.device)
            batch = world.pool.batch(some, weight, key)
            parts.append(world.task.forward(model, batch, training=False).prediction)
    return torch.cat(parts)
