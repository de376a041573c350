"""Client after client: plain and obviously right. The reference, and the path of a real device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

import torch

from consilience import tree
from consilience.engine.executors.base import Errand, Executor, Outcome, one_by_one
from consilience.exchange import screen
from consilience.exchange.cohort import Cohort
from consilience.exchange.device import SequentialFold, idle
from consilience.types import State


class Sequential(Executor):
    """The executor that computes one client, one hub, one model at a time."""

    name: ClassVar[str] = "sequential"

    def map(
        self,
        function: Callable[..., State],
        dims: Sequence[int | None],
        *states: State,
        key: Hashable = None,
    ) -> State:
        return one_by_one(function, dims, *states)

    def clients(
        self,
        cohort: Cohort,
        errand: Errand,
        states: Sequence[State],
        *,
        shared: Sequence[State] = (),
    ) -> Outcome:
        blanks = (errand.example or errand.work)(idle, [*(tree.index(state, 0) for state in states), *shared])
        expected = [_kinds(blank) for blank in blanks]
        uploads, memories, tallies, shaped = [], [], [], []
        for job in range(len(cohort.jobs)):
            fold = SequentialFold(self.pool, cohort, job)
            results = errand.work(fold, [*(tree.index(state, job) for state in states), *shared])
            # What has another form cannot be stacked: blanks stand for it and do not count.
            shaped.append([_kinds(result) for result in results] == expected)
            upload, memory = results if shaped[-1] else blanks
            uploads.append(upload)
            memories.append(memory)
            tallies.append(fold.tally)
        stacked, kept = tree.stack(uploads), tree.stack(memories)
        sound = screen.finite([stacked, kept], len(uploads), cohort.device)
        tally = {name: torch.stack([tally[name] for tally in tallies]) for name in tallies[0]}
        return Outcome(stacked, kept, torch.tensor(shaped, device=cohort.device) & sound, tally)


def _kinds(state: State) -> dict[str, tree.Kind]:
    return {path: tree.kind_of(value) for path, value in tree.flatten(state).items()}
