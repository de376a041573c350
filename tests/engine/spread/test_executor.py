"""Workers do what one process would have done, to the bit, however many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilience.algorithms import METHODS
from consilience.engine.executors.base import Errand
from consilience.engine.executors.sequential import Sequential
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.spread import executor, kept
from consilience.engine.spread.executor import Spread
from consilience.engine.spread.worker import Arrays, Done, Part, Worker, gathered, packed, unpacked
from consilience.exchange import cohort
from consilience.exchange.cohort import Cohort, Job, LocalWork
from consilience.graphs import Ring, Star
from consilience.testing import prepare
from consilience.testing.federation import (
    SIZES,
    Layout,
    assert_same,
    play,
    ragged_partition,
    simulation_of,
    state_of,
)

AT_SERVERS = [
    "fedavg",
    "scaffold",
    "fedcurv",
    "hwa",
    "fagh",
    "fedga",
    "fedlin",
    "moon",
    "pfedme",
    "giant",
    "fedma",
]
AMONG_PEERS = ["dechw", "cfa-ge", "desa", "gradient-tracking"]
SMALL = {"desa": {"ipc": 2, "iterations": 2, "width": 4, "depth": 2}}


class Here:
    """Workers in this process, each with a world of its own; those in `deadly` die in that exchange."""

    def __init__(self, worlds: Sequence[Simulation]) -> None:
        self.workers = {number: Worker(lambda one=one: one, "fp32") for number, one in enumerate(worlds)}
        self.parts: list[Part] = []
        self.exchanges: list[dict[int, Part]] = []
        self.deadly: dict[int, int] = {}

    def there(self) -> list[int]:
        return list(self.workers)

    def carry_out(self, parts: Mapping[int, Part], alike: dict[int, Arrays]) -> dict[int, Done]:
        self.parts += parts.values()
        self.exchanges.append(dict(parts))
        dead = self.deadly.pop(len(self.exchanges), None)
        if dead is not None:
            old = self.workers.pop(dead)
            self.workers[100 + dead] = Worker(lambda: old._simulation, "fp32")
        done = {one: self.workers[one].carry_out(part, alike) for one, part in parts.items() if one != dead}
        return {one: own for one, own in done.items() if own is not None}

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def spread(make, count: int) -> tuple[Simulation, Here]:
    """A simulation whose clients work at some number of workers."""
    simulation, here = make(), Here([make() for _ in range(count)])
    world = simulation.world
    simulation.world = replace(world, executor=Spread(world.executor, here))
    return simulation, here


@pytest.mark.parametrize("name", [*AT_SERVERS, *AMONG_PEERS])
def test_workers_are_the_sequential_executor_bit_for_bit(name):
    subject = prepare(METHODS[name](**SMALL.get(name, {})))
    layout = Layout(topology=Ring() if name in AMONG_PEERS else Star())

    def make() -> Simulation:
        return simulation_of(subject, layout)

    alone = make()
    rounds = 2
    expected = [alone.step() for _ in range(rounds)]
    for count in (2, 3):
        simulation, here = spread(make, count)
        found = [simulation.step() for _ in range(rounds)]
        assert here.parts  # some work did travel
        assert_same(state_of(alone), state_of(simulation), f"{name} with {count} workers")
        for left, right in zip(expected, found, strict=True):
            assert [one.scores for one in left] == [one.scores for one in right]
            assert [one.train_loss for one in left] == [one.train_loss for one in right]


def test_a_server_says_the_same_to_all_once():
    subject = prepare(METHODS["fedavg"]())
    simulation, here = spread(lambda: simulation_of(subject, Layout()), 2)
    seen = []
    carry_out = here.carry_out
    here.carry_out = lambda parts, alike: seen.append(alike) or carry_out(parts, alike)
    play(simulation, 1)
    broadcast = seen[0][2]
    assert all(len(value) == 1 for params in broadcast.values() for value in params.values())
    assert all(2 not in part.own for part in here.parts)


def sent(part: Part) -> int:
    """How many memories go to a worker."""
    return sum(mark == 0 for mark in part.known)


@pytest.mark.parametrize(("name", "topology"), [("scaffold", Star()), ("fedcurv", Star()), ("dechw", Ring())])
@pytest.mark.parametrize("participation", [100, 3])
def test_memories_stay_where_they_were_made(name, topology, participation):
    """Whoever dies, or has lost what it kept, gets them again; results are those of one process."""
    subject = prepare(METHODS[name]())
    layout = Layout(topology=topology, participation=participation)

    def make() -> Simulation:
        return simulation_of(subject, layout)

    alone, (simulation, here) = make(), spread(make, 2)
    here.deadly = {5: 0}
    rounds = 7
    for number in range(rounds):
        alone.step(evaluate=False)
        simulation.step(evaluate=False)
        if number == 5:
            for worker in here.workers.values():
                worker._kept.clear()
    assert_same(state_of(alone), state_of(simulation), name)
    remembering = [parts for parts in here.exchanges if all(part.marks for part in parts.values())]
    assert len(remembering) == len(here.exchanges) > rounds  # some were repeated
    if participation == 100:
        assert sum(map(sent, remembering[0].values())) == 5
        assert all(sum(map(sent, parts.values())) == 0 for parts in remembering[1:4])
    kept = sum(len(worker._kept) for worker in here.workers.values())
    told = sum(map(len, simulation.world.executor._kept._dropped.values()))
    assert kept - told == sum(map(len, simulation.world.executor._kept._marks.values()))


def test_workers_keep_no_more_than_they_may(monkeypatch):
    subject = prepare(METHODS["scaffold"]())
    simulation, here = spread(lambda: simulation_of(subject, Layout()), 2)
    memory = simulation.store.load(np.zeros(1, dtype=np.int64))
    size = sum(value.nbytes for params in memory.values() for value in params.values())
    monkeypatch.setattr(kept, "KEPT_BYTES", size)
    alone = simulation_of(subject, Layout())
    for _ in range(4):
        simulation.step(evaluate=False)
        alone.step(evaluate=False)
    assert [sum(map(sent, parts.values())) for parts in here.exchanges] == [5, 3, 3, 3]
    assert_same(state_of(alone), state_of(simulation), "with little room")


def test_nobody_trusts_memories_that_have_changed_since():
    subject = prepare(METHODS["scaffold"]())
    simulation, here = spread(lambda: simulation_of(subject, Layout()), 2)
    alone = simulation_of(subject, Layout())
    for one in (simulation, alone):
        one.step(evaluate=False)
        before = one.snapshot()
        one.step(evaluate=False)
        one.restore(before)
        one.store.forget(np.array([1]))
        one.step(evaluate=False)
    assert sum(map(sent, here.exchanges[-1].values())) == 5
    assert_same(state_of(alone), state_of(simulation), "after a return")


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_test_set_is_scored_in_pieces_as_at_once(seeds, monkeypatch):
    """Sums of batches are added in order, so the number of workers does not show, nor does one that dies."""
    monkeypatch.setattr(cohort, "TEST_ROWS", 2)  # five batches, the last one short
    subject = prepare(METHODS["fedavg"]())
    layout = Layout(partitions={seed: ragged_partition(SIZES, seed) for seed in range(seeds)})

    def make() -> Simulation:
        return simulation_of(subject, layout)

    alone = make()
    expected = [one.scores for one in alone.step()]
    for count in (2, 4, 5):
        simulation, here = spread(make, count)
        simulation.step(evaluate=False)
        assert not any(part.batches for part in here.parts)
        monkeypatch.setattr(executor, "SPEED", {"cpu": 1e-9})  # so that it pays
        here.deadly = {len(here.exchanges) + 1: 1}
        assert simulation.evaluate() == expected
        pieces = [part for part in here.parts if part.batches]
        if count // seeds > 1:
            assert len(pieces) == 1 + seeds * (count // seeds)  # one is scored again
        monkeypatch.setattr(executor, "SPEED", {"cpu": 2e10})


def test_a_test_set_is_scored_in_pieces_where_that_pays():
    """An MLP with 10 million weights takes 20 million operations a row, and some hidden units take few."""

    def pieces(rows: int, operations: float, model: int, workers: int) -> int:
        here = type("Some", (), {"there": lambda self: range(workers)})()
        jobs = (Job(0, 0, 0, np.arange(3), np.arange(0)),)
        some = Cohort(jobs, 0, LocalWork(1, None, 4), torch.device("cpu"), np.arange(rows))
        one = Spread(Sequential(pool), here)
        states = [{}, {"params": {"w": torch.zeros(1, model)}}]
        errand = Errand(lambda fold, given: ({}, {}), order="test", operations=lambda: int(operations))
        return one._pieces(some, errand, states)

    pool = simulation_of(prepare(METHODS["fedavg"]()), Layout()).world.pool
    assert pieces(10_000, 2e7, 10_000_000, 8) == 8
    assert pieces(10_000, 2e7, 10_000_000, 64) == 10  # as many as there are batches
    assert pieces(10_000, 1e4, 5_000, 8) == 1
    assert pieces(10_000, 1e5, 500_000_000, 8) == 1  # it would take longer to send the model
    assert pieces(500, 2e9, 1_000_000, 8) == 1  # a single batch


def test_operations_are_not_counted_where_a_test_set_cannot_be_divided():
    """To count them takes a second the first time."""
    subject = prepare(METHODS["fedavg"]())
    simulation, here = spread(lambda: simulation_of(subject, Layout()), 2)
    simulation.step()
    assert here.parts
    assert not simulation.world.task._traces


def test_outcomes_come_back_in_the_order_of_jobs():
    parts = [
        Done({"g": {"v": np.array([rows], dtype=np.float32).T}}, {}, np.array([True] * len(rows)), {})
        for rows in ([1, 3], [0, 2])
    ]
    outcome = gathered(parts, [[1, 3], [0, 2]], torch.device("cpu"))
    assert outcome.uploads["g"]["v"].flatten().tolist() == [0, 1, 2, 3]


def test_states_travel_unchanged():
    state = {"a": {"x": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1, 2])}, "empty": {}}
    assert_same(state, unpacked(packed(state), torch.device("cpu")), "a journey")
