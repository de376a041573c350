"""A cohort: the clients (of all replicas) that work in one exchange, and the batches they will see.

A replica is one of the federations that a simulation computes at once: one seed of one variant of a method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from consilience.client import Rows
from consilience.learning.batches import Plan, Visit, common_plan, data_plan, training_plan
from consilience.learning.randomness import Purpose, generator, stream_keys
from consilience.types import IntArray

SAMPLE_ROWS = 128
"""How many rows a batch has where only samples matter."""
TEST_ROWS = 1000
"""How many rows of the test set a model sees at a time."""


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in one round, a number of epochs or of steps, and how."""

    epochs: int | None
    steps: int | None
    batch_size: int
    stragglers: float = 0.0
    """How likely a client does less: some number of epochs (or steps) below the full one, at least 1."""
    lr_decay: float = 1.0
    """The learning rate is multiplied by this from round to round."""
    clip: float | None = None
    """The largest norm of a gradient; longer ones are shortened."""

    def done(self, seed: int, round_number: int, client: int) -> int:
        """The epochs (or steps) that a client does in a round."""
        full = self.epochs if self.steps is None else self.steps
        assert full is not None
        if self.stragglers == 0 or full < 2:
            return full
        random = generator(seed, Purpose.STRAGGLING, round_number, client)
        return int(random.integers(1, full)) if random.random() < self.stragglers else full

    def count(self, samples: IntArray, done: int | IntArray) -> IntArray:
        """The optimiser steps of clients with some numbers of samples that do some epochs (or steps)."""
        return done * ((samples > 0) if self.steps is not None else -(-samples // self.batch_size))


@dataclass(frozen=True)
class Population:
    """How much data the clients of all replicas hold, by which computations are laid out.

    Cohorts differ from round to round; what is laid out for everybody serves them all.
    """

    samples: IntArray
    """How many rows each client trains on, of those who have any."""
    holdouts: IntArray
    """How many rows each of them keeps back."""
    share: float = 1.0
    """What part of them takes part in a round."""
    models: int = 1
    """How many models are evaluated at a time."""
    _forms: dict[tuple[Rows, LocalWork], tuple[int, int]] = field(default_factory=dict, compare=False)

    def rows(self, which: Rows) -> IntArray:
        """How many rows there are to visit, by client."""
        return self.holdouts if which == "holdout" else self.samples

    def width(self, which: Rows, work: LocalWork) -> int:
        """How many rows a batch has: as many as any client needs, since machines are built for a width."""
        return self._form(which, work)[0]

    def lanes(self, which: Rows, work: LocalWork) -> int:
        """How many lanes a usual cohort needs to be done when its longest job is."""
        return self.models if which == "test" else self._form(which, work)[1]

    def _form(self, which: Rows, work: LocalWork) -> tuple[int, int]:
        """The width and the lanes, worked out once: clients may be very many."""
        if (which, work) not in self._forms:
            rows = self.rows(which)
            width = max(1, min(rows_of_batch(which, work), int(rows.max(initial=0))))
            if which == "batch" or (which == "train" and work.steps is not None):
                steps = np.ones_like(rows)
            else:
                steps = -(-rows // rows_of_batch(which, work))
            lanes = max(1, int(np.ceil(self.share * steps.sum() / max(1, steps.max(initial=0)))))
            self._forms[which, work] = (width, lanes)
        return self._forms[which, work]


def rows_of_batch(which: Rows, work: LocalWork) -> int:
    """How many rows a batch has, where there are enough."""
    return work.batch_size if which in ("train", "data", "batch") else SAMPLE_ROWS


class Job(NamedTuple):
    """One client's work in one replica. The seed is the replica's."""

    replica: int
    seed: int
    client: int
    shard: IntArray
    """The rows of the data that the client trains on."""
    holdout: IntArray
    """The rows that it keeps back for evaluation."""
    host: int | None = None
    """The client whom a reply is for; None where the work is no reply."""
    secret: int | None = None
    """What keys the client's own draws (order of training, noise) where nobody else may know them.

    A simulated client has none: the seed takes its place.
    """

    @property
    def source(self) -> int:
        """What the client's own draws are keyed by."""
        return self.seed if self.secret is None else self.secret

    def rows(self, which: Rows) -> IntArray:
        """The rows of the data to visit."""
        return self.holdout if which == "holdout" else self.shard


@dataclass(frozen=True)
class Cohort:
    """The jobs of one exchange. Plans of their batches are made when they are first asked for."""

    jobs: tuple[Job, ...]
    round: int
    work: LocalWork
    device: torch.device
    test: IntArray
    """Rows of the global test set."""
    known: Population | None = None
    """What all clients hold; by default what these do."""
    _plans: dict[tuple[Rows, int | None], Plan] = field(default_factory=dict)

    def part(self, chosen: slice) -> Cohort:
        """The cohort of some of the jobs."""
        return Cohort(self.jobs[chosen], self.round, self.work, self.device, self.test, self.population)

    def on_test_batch(self, number: int) -> Cohort:
        """The cohort with one batch of the test set for all of it."""
        batch = self.test[number * TEST_ROWS : (number + 1) * TEST_ROWS]
        return Cohort(self.jobs, self.round, self.work, self.device, batch, self.population)

    @property
    def test_batches(self) -> int:
        """How many batches the test set has."""
        return -(-len(self.test) // TEST_ROWS)

    @cached_property
    def population(self) -> Population:
        """What all clients hold who might have been in the cohort."""
        if self.known is not None:
            return self.known
        holdouts = np.array([len(job.holdout) for job in self.jobs], dtype=np.int64)
        return Population(self.samples, holdouts, models=len(self.jobs))

    @cached_property
    def samples(self) -> IntArray:
        """[jobs] how many training samples each job's client has."""
        return np.array([len(job.shard) for job in self.jobs], dtype=np.int64)

    @property
    def steps(self) -> IntArray:
        """[jobs] how many optimiser steps each job takes."""
        return self.work.count(self.samples, self.done)

    @cached_property
    def done(self) -> IntArray:
        """[jobs] how many epochs (or steps) each job's local training has."""
        done = [self.work.done(job.source, self.round, job.client) for job in self.jobs]
        return np.array(done, dtype=np.int64)

    def keys(self) -> tuple[IntArray, IntArray]:
        """Sources of randomness in this round, [jobs] int64: a job's own, and what a seed's jobs share."""
        clients = [job.client for job in self.jobs]
        hosts = [job.host for job in self.jobs if job.host is not None]
        names = (clients, hosts) if hosts else (clients,)
        own = stream_keys([job.source for job in self.jobs], Purpose.MESSAGE, self.round, *names)
        seeds = [job.seed for job in self.jobs]
        return own, stream_keys(seeds, Purpose.COMMON, self.round, *[0] * len(names))

    def plan(self, rows: Rows, epoch: int | None = None) -> Plan:
        """The batches of all jobs; of one epoch of training alone, where `epoch` is given."""
        if (rows, epoch) not in self._plans:
            self._plans[rows, epoch] = self._make_plan(rows, epoch)
        return self._plans[rows, epoch]

    def plan_like(self, other: Cohort) -> None:
        """Make the plans that were made for another cohort, before anybody asks for them."""
        for rows, epoch in other.planned():
            self.plan(rows, epoch)

    def planned(self) -> list[tuple[Rows, int | None]]:
        """What plans were made for."""
        return list(self._plans)

    def _make_plan(self, rows: Rows, epoch: int | None) -> Plan:
        if rows == "test":
            return common_plan(self.test, len(self.jobs), TEST_ROWS, self.device)
        visits = [Visit(job.source, self.round, job.client, job.rows(rows)) for job in self.jobs]
        size = self.population.width(rows, self.work)
        if rows == "train":
            if self.work.steps is not None:
                return training_plan(visits, [()] * len(visits), self.done.tolist(), size, self.device)
            epochs = [
                range(count) if epoch is None else range(epoch, epoch + 1) for count in self.done.tolist()
            ]
            return training_plan(visits, epochs, None, size, self.device)
        whole = data_plan(visits, size, self.device)
        return whole.beginning([1] * len(visits)) if rows == "batch" else whole


def sample_clients(
    seed: int, round_number: int, available: IntArray, count: int, exchange: int = 0
) -> IntArray:
    """The clients of a round, in ascending order: `count` of those available, or all if they are no more.

    Args:
        seed: The run's seed.
        round_number: The round, counted from 0.
        available: The clients that could take part.
        count: How many do.
        exchange: The number of the exchange in which clients were last drawn (`Phase.resampled`).
    """
    if count >= len(available):
        return available
    random = generator(seed, Purpose.COHORT, round_number, *([exchange] if exchange else []))
    return np.sort(random.choice(available, size=count, replace=False))


def failed_clients(seed: int, round_number: int, clients: IntArray, rate: float) -> frozenset[int]:
    """The clients whose upload will not arrive this round; `rate` is how likely that is for each."""
    if rate == 0:
        return frozenset()
    # Every client has a draw of its own, so that who fails does not depend on who else was sampled.
    return frozenset(
        int(client)
        for client in clients
        if generator(seed, Purpose.FAILURE, round_number, int(client)).random() < rate
    )
