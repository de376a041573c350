"""Routines: recorded work gives what the work gives, also cut at its folds as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from consilience.algorithms import METHODS
from consilience.engine.executors import lanes, routine
from consilience.engine.executors.routine import Enter, Routines
from consilience.testing import prepare
from consilience.testing.federation import SIZES, Layout, ragged_partition, simulation_of
from consilience.types import State


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


class Broken(Graphs):
    """Graphs of which none can be captured."""

    def capture(self, work: Callable[[], None], device: torch.device) -> Rerun:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"desa"}))
def test_rounds_are_the_same_with_and_without(name, monkeypatch):
    # A model that grows would have a form of its own in every round.
    subject = prepare(METHODS[name](**({"max_growth": 0} if name == "fedma" else {})))
    seeds = range(1 if subject.algorithm.reshapes() else 2)
    layout = Layout(subject.topologies[0], {seed: ragged_partition(SIZES, seed) for seed in seeds}, lanes=3)
    results = []
    ways = [(lanes.COPIED_SHARE, routine.GraphMemory), (lanes.COPIED_SHARE, Graphs), (2**63, Graphs)]
    for share, graphs in ways:  # as recorded, cut at its folds, and not at all
        monkeypatch.setattr(lanes, "COPIED_SHARE", share)
        monkeypatch.setattr(routine, "GraphMemory", graphs)
        simulation = simulation_of(subject, layout)
        records = [simulation.step() for _ in range(5)]
        results.append((records, simulation.hub))
    *repeated, (plain, other) = results
    for recorded, hub in repeated:
        for one, two in zip(recorded, plain, strict=True):
            assert [(r.train_loss, r.scores) for r in one] == [(r.train_loss, r.scores) for r in two]
        for group, params in hub.items():
            for key, value in params.items():
                assert torch.equal(value, other[group][key]), (group, key)


def test_what_cannot_be_captured_runs_as_it_was_recorded(monkeypatch):
    results = []
    for graphs in (routine.GraphMemory, Broken):
        monkeypatch.setattr(routine, "GraphMemory", graphs)
        subject = prepare(METHODS["hwa"]())
        simulation = simulation_of(subject, Layout(lanes=3))
        results.append([[(r.train_loss, r.samples) for r in simulation.step()] for _ in range(5)])
        states = {one._state for one in simulation.world.executor._routines._known.values()}
        assert ("as recorded" in states) == (graphs is Broken)
    assert results[0] == results[1]


@pytest.mark.parametrize("decompose", [torch.linalg.qr, torch.linalg.eigh, torch.linalg.svd])
def test_decompositions_are_never_captured(decompose, monkeypatch):
    monkeypatch.setattr(routine, "GraphMemory", Broken)
    routines = Routines(10**6)
    matrix = torch.arange(9.0).reshape(3, 3) + torch.eye(3)

    def work(enter: Enter, states: Sequence[State]) -> State:
        return {"b": {"y": decompose(states[0]["a"]["x"])[0]}}

    monkeypatch.setattr(Broken, "capture", no_act)
    for _ in range(4):
        found = routines.run("key", work, [{"a": {"x": matrix}}], no_act)
        torch.testing.assert_close(found["b"]["y"], decompose(matrix)[0])


def test_what_cannot_be_recorded_is_done_at_once():
    routines, calls = Routines(10**6), []

    def act(facts: object, tensors: Sequence[Tensor], places: object) -> Sequence[Tensor]:
        calls.append(facts)
        return [value + 1 for value in tensors]

    def work(enter: Enter, states: Sequence[State]) -> State:
        (moved,) = enter("a fold", [states[0]["a"]["x"]])
        return {"b": {"y": moved * moved.sum().item()}}

    for number in (1.0, 2.0, 3.0):
        found = routines.run("key", work, [{"a": {"x": torch.full((2,), number)}}], act)
        assert found["b"]["y"].tolist() == [2 * (number + 1) ** 2] * 2
    assert calls == ["a fold"] * 4  # once in vain


def test_routines_that_were_not_used_for_longest_go_first(monkeypatch):
    monkeypatch.setattr(routine, "MOST", 2)
    routines, done = Routines(10**6), []

    def work(name: str, enter: Enter, states: Sequence[State]) -> State:
        done.append(name)
        return {"b": {"y": states[0]["a"]["x"] + 1}}

    for name in "aaabbbaaacccaaabbb":
        routines.run(name, partial(work, name), [{"a": {"x": torch.zeros(2)}}], no_act)
    assert done == [*"aabbccbb"]  # at once, and while it is recorded


def no_act(facts: object, tensors: Sequence[Tensor], places: object) -> Sequence[Tensor]:
    raise AssertionError
