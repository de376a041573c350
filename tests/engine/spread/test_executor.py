"""Workers do what one process would have done, to the bit, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilience.algorithms import METHODS
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.spread.executor import Spread
from consilience.engine.spread.worker import Arrays, Done, Part, Worker, gathered, packed, unpacked
from consilience.graphs import Ring, Star
from consilience.testing import prepare
from consilience.testing.federation import Layout, assert_same, play, simulation_of, state_of

AT_SERVERS = ["fedavg", "scaffold", "fedcurv", "hwa", "fagh", "fedlin", "moon", "pfedme", "giant", "fedma"]
AMONG_PEERS = ["dechw", "cfa-ge", "desa", "gradient-tracking"]
SMALL = {"desa": {"ipc": 2, "iterations": 2, "width": 4, "depth": 2}}


class Here:
    """Workers in this process, each with a world of its own."""

    def __init__(self, worlds: Sequence[Simulation]) -> None:
        self.workers = [Worker(lambda one=one: one, "fp32") for one in worlds]
        self.parts: list[Part] = []

    def count(self) -> int:
        return len(self.workers)

    def carry_out(self, parts: Sequence[Part], alike: dict[int, Arrays]) -> list[Done]:
        self.parts += parts
        return [worker.carry_out(part, alike) for worker, part in zip(self.workers, parts, strict=False)]

    def close(self) -> None:
        for worker in self.workers:
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
