"""Client after client: plain and obviously right. The reference, and the path of a real device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.client import Rows, Step
from consilience.engine.executors.base import Executor, Outcome, Work
from consilience.exchange import screen
from consilience.exchange.cohort import Cohort
from consilience.learning.batches import Pool
from consilience.types import State


class SequentialFold:
    """Runs a step over the batches of one job."""

    def __init__(self, pool: Pool, cohort: Cohort, job: int) -> None:
        self._pool, self._cohort, self._job = pool, cohort, job
        self.tally: dict[str, Tensor] = {}

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """One batch after the other, each of its own size."""
        plan = self._cohort.plan(rows, epoch)
        for number in plan.of_job(self._job):
            chosen = plan.rows[number, : plan.sizes[number]]
            weight = torch.ones(len(chosen), dtype=self._pool.dtype, device=chosen.device)
            carry = step(carry, self._pool.batch(chosen, weight, plan.keys[number]), extras)
        for name, value in carry.get("tally", {}).items():
            self.tally[name] = self.tally[name] + value if name in self.tally else value
        return carry


def _stack(states: list[State], shaped: list[bool]) -> State:
    """The states as one. One of the wrong shape cannot be stacked: zeros stand for it and do not count."""
    blank = tree.map_leaves(torch.zeros_like, states[shaped.index(True)])
    return tree.stack([state if ok else blank for state, ok in zip(states, shaped, strict=True)])


class Sequential(Executor):
    """One client, one hub, one model at a time."""

    name: ClassVar[str] = "sequential"

    def map(self, function: Callable[..., State], dims: Sequence[int | None], *states: State) -> State:
        pairs = list(zip(dims, states, strict=True))
        mapped = (value for dim, state in pairs if dim == 0 for value in tree.flatten(state).values())
        rows = range(len(next(mapped)))
        return tree.stack(
            [function(*(s if dim is None else tree.index(s, row) for dim, s in pairs)) for row in rows]
        )

    def clients(self, cohort: Cohort, work: Work, states: Sequence[State]) -> Outcome:
        uploads, memories, tallies = [], [], []
        for job in range(len(cohort.jobs)):
            fold = SequentialFold(self.pool, cohort, job)
            upload, memory = work(fold, [tree.index(state, job) for state in states])
            uploads.append(upload)
            memories.append(memory)
            tallies.append(fold.tally)
        shaped = screen.well_formed(list(zip(uploads, memories, strict=True)))
        stacked, kept = _stack(uploads, shaped), _stack(memories, shaped)
        sound = screen.finite([stacked, kept], len(uploads), cohort.device)
        tally = {name: torch.stack([tally[name] for tally in tallies]) for name in tallies[0]}
        return Outcome(stacked, kept, torch.tensor(shaped, device=cohort.device) & sound, tally)
