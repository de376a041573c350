"""From a device's own data to the `Client` that a method's code sees, in a simulation and on a real device.

Who a client is (seed, number), the round and its own rows decide its batches and its randomness, and nothing
else does: a device that holds the rows of a simulated client computes what that client computes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience import sweeping
from consilience.client import Client, Fold, Rows, Step
from consilience.exchange.cohort import Cohort, Job, LocalWork
from consilience.learning.batches import Pool
from consilience.learning.randomness import seeded
from consilience.learning.schedules import Scheduled
from consilience.learning.solvers import Solver
from consilience.learning.task import Task
from consilience.transfer import to_device
from consilience.types import IntArray, State

FACTS = "client"
"""The group that holds what tells clients apart: samples, steps, keys, the round and the rate's decay."""


class SequentialFold:
    """A fold over the batches of one job of a cohort, one after the other, each of its own size."""

    def __init__(self, pool: Pool, cohort: Cohort, job: int = 0) -> None:
        self._pool, self._cohort, self._job = pool, cohort, job
        self.tally: dict[str, Tensor] = {}

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """The carry after all batches."""
        plan = self._cohort.plan(rows, epoch)
        for number in plan.of_job(self._job):
            device = self._pool.targets.device
            chosen, key = plan.rows[number, : plan.sizes[number]].to(device), plan.keys[number].to(device)
            weight = torch.ones(len(chosen), dtype=self._pool.dtype, device=device)
            with seeded(plan.keys[number]):  # whatever a model may draw that is not drawn by the key itself
                carry = step(carry, self._pool.batch(chosen, weight, key), extras)
        for name, value in carry.get("tally", {}).items():
            self.tally[name] = self.tally[name] + value if name in self.tally else value
        return carry


def idle(step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None) -> State:
    """A fold over no batches: it gives the carry as it is, which shows the form of a client's messages."""
    return carry


def facts_of(cohort: Cohort, dtype: torch.dtype) -> State:
    """What tells the clients of a cohort apart, one row a job."""
    # One transfer for all: on a GPU, rounds of small clients are mostly waiting.
    whole = to_device(np.stack([cohort.samples, cohort.steps, *cohort.keys()]), cohort.device)
    samples, steps = whole[:2].to(dtype)
    decay = torch.full_like(samples, cohort.work.lr_decay**cohort.round)
    key, common_key = whole[2:]
    return {
        FACTS: {
            "samples": samples,
            "steps": steps,
            "decay": decay,
            "round": torch.full_like(samples, cohort.round),
            "key": key,
            "common_key": common_key,
        }
    }


def client_of(task: Task, solver: Solver, work: LocalWork, facts: State, fold: Fold, *, peer: bool) -> Client:
    """The client that one row of `facts_of` describes.

    Args:
        task: The model's architecture and the problem.
        solver: The local optimiser, before its learning rate has decayed or followed a schedule.
        work: How much clients train.
        facts: One row of `facts_of`.
        fold: What runs a step over the client's batches.
        peer: Whether it is a node of a graph.
    """
    own = facts[FACTS]
    if isinstance(solver, Scheduled):
        solver = solver.begun(own["round"], own["steps"])
    if work.lr_decay != 1:
        solver = sweeping.replace(solver, {"lr": solver.lr * own["decay"]})
    return Client(
        task=task,
        solver=solver,
        samples=own["samples"],
        steps=own["steps"],
        epochs=work.epochs or 0,
        fold=fold,
        key=own["key"],
        common_key=own["common_key"],
        peer=peer,
        clip=work.clip,
    )


def device_client(
    task: Task,
    solver: Solver,
    pool: Pool,
    work: LocalWork,
    *,
    seed: int,
    round_number: int,
    number: int,
    holdout: IntArray | None = None,
    peer: bool = False,
    host: int | None = None,
    secret: int | None = None,
) -> Client:
    """The client that a device is in a round.

    Args:
        task: The model's architecture and the problem.
        solver: The local optimiser.
        pool: The device's own data, in the order in which a simulation lists them.
        work: How much it trains.
        seed: The run's seed.
        round_number: The round, counted from 0.
        number: The device's own number in the federation.
        holdout: Rows of the pool that are kept back for evaluation; the others are trained on.
        peer: Whether it is a node of a graph.
        host: In an exchange of replies, the neighbour whom it answers.
        secret: What keys its own draws, so that nobody who knows the seed can undo them; by default the seed.
    """
    kept_back = np.zeros(0, dtype=np.int64) if holdout is None else holdout
    rows = np.setdiff1d(np.arange(len(pool.targets), dtype=np.int64), kept_back)
    job = Job(0, seed, number, rows, kept_back, host, secret)
    cohort = Cohort((job,), round_number, work, pool.targets.device, np.zeros(0, dtype=np.int64))
    facts = {
        group: {name: value[0] for name, value in params.items()}
        for group, params in facts_of(cohort, pool.dtype).items()
    }
    return client_of(task, solver, work, facts, SequentialFold(pool, cohort), peer=peer)
