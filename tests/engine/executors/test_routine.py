"""Routines: recorded work gives what the work gives, also cut at its folds as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from consilience.algorithms import METHODS
from consilience.engine.executors import lanes, routine
from consilience.testing import prepare
from consilience.testing.federation import SIZES, Layout, ragged_partition, simulation_of


class Rerun:
    """What stands for a graph: work that is done again, with its results in the same places."""

    def __init__(self, work: Any) -> None:
        self.work, self.found = work, work.args[0]

    def replay(self) -> None:
        places = list(self.found)
        self.found.clear()
        self.work()
        for place, value in zip(places, self.found, strict=True):
            place.copy_(value)
        self.found[:] = places


class Graphs:
    """What stands for the memory of graphs, where there is no GPU."""

    captured = 0

    def captures(self, device: torch.device) -> bool:
        return True

    def capture(self, work: Callable[[], None], device: torch.device) -> Rerun:
        Graphs.captured += 1
        work()
        return Rerun(work)


@pytest.fixture(params=["as recorded", "cut at its folds"])
def graphs(request, monkeypatch):
    if request.param == "cut at its folds":
        monkeypatch.setattr(routine, "GraphMemory", Graphs)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"desa"}))
def test_rounds_are_the_same_with_and_without(name, monkeypatch):
    results = []
    for share in (lanes.COPIED_SHARE, 2**63):
        monkeypatch.setattr(lanes, "COPIED_SHARE", share)
        subject = prepare(METHODS[name]())
        layout = Layout(
            subject.topologies[0], {seed: ragged_partition(SIZES, seed) for seed in range(2)}, lanes=3
        )
        simulation = simulation_of(subject, layout)
        records = [simulation.step() for _ in range(4)]
        results.append((records, simulation.hub))
    (recorded, hub), (plain, other) = results
    for one, two in zip(recorded, plain, strict=True):
        assert [(r.train_loss, r.scores) for r in one] == [(r.train_loss, r.scores) for r in two]
    for group, params in hub.items():
        for key, value in params.items():
            assert torch.equal(value, other[group][key]), (group, key)
