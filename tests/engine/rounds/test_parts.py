"""Cohorts that are computed in parts: hubs get the same, and hold no more than a part."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedga import FedGA
from consilience.algorithms.fednova import FedNova
from consilience.algorithms.hwa import HWA
from consilience.algorithms.scaffold import Scaffold
from consilience.engine.executors.base import Outcome
from consilience.engine.rounds import parts
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.rules.median import Median
from consilience.testing import prepare
from consilience.testing.federation import (
    SIZES,
    Layout,
    assert_close,
    assert_same,
    play,
    ragged_partition,
    simulation_of,
    state_of,
)
from consilience.testing.federations import poisoned_round

SUMS = (FedAvg(), HWA(), FedCurv(), Scaffold(), FedNova())


@pytest.mark.parametrize("method", SUMS, ids=lambda one: one.name)
def test_it_does_not_matter_which_messages_come_together(method):
    subject = prepare(method, solver=SGD(0.1))
    partitions = {0: ragged_partition(SIZES), 1: ragged_partition((5, 0, 8, 2, 3), first=40)}
    found = []
    for chunk in (1, 2, 3, 4):
        # One client after the other, so that only the sums could differ.
        simulation = simulation_of(subject, Layout(partitions=partitions, dtype=torch.float32))
        simulation.world.executor.chunk = chunk
        simulation.world = dataclasses.replace(simulation.world, failure_rate=0.3)
        found.append(play(simulation, rounds=3))
    for other in found[1:]:
        for replica, state in enumerate(other):
            assert_same(found[0][replica], state, "in other parts")


@pytest.mark.parametrize("method", [*SUMS, Composed(rule=Median())], ids=lambda one: one.name)
def test_an_upload_that_is_not_sound_does_not_count(method):
    subject = prepare(method, solver=SGD(0.1))
    states = []
    for chunk in (100, 2):
        simulation = simulation_of(subject, Layout(lanes=2, chunk=chunk))
        play(simulation, rounds=1)
        record = poisoned_round(simulation, [1, 4])
        assert len(record.dropped) == 2
        states.append(play(simulation, rounds=1)[0])
    assert_close(states[0], states[1], "in parts")


@pytest.mark.parametrize("bad", [[0, 1], range(5)], ids=["first part", "all"])
@pytest.mark.parametrize("method", [FedAvg(), Scaffold(), Composed(rule=Median())], ids=lambda one: one.name)
def test_parts_without_a_sound_message_are_not_kept(method, bad, monkeypatch):
    """A grid's first variant may have diverged: then no message of the first part says what hubs ask for."""
    subject = prepare(method, solver=SGD(0.1))
    states, kept = [], []

    def joined(found: Sequence[Outcome]) -> Outcome:
        kept.append([bool(one.uploads) for one in found])
        return original(found)

    original = parts.joined
    for chunk in (100, 2):
        simulation = simulation_of(subject, Layout(lanes=2, chunk=chunk))
        play(simulation, rounds=1)
        monkeypatch.setattr(parts, "joined", joined)
        assert len(poisoned_round(simulation, bad).dropped) == len(bad)
        monkeypatch.setattr(parts, "joined", original)
        states.append(state_of(simulation))
    assert_close(states[0], states[1], "in parts")
    stacked = isinstance(method, Composed) and len(bad) < 5
    assert kept == [[stacked] * 3]


@pytest.mark.parametrize(
    "method", [FedAvg(), FedGA(), Scaffold(), Composed(rule=Median())], ids=lambda one: one.name
)
def test_a_variant_that_has_diverged_does_not_touch_the_others(method):
    """Of the first parts then no message is sound."""
    subject, found = prepare(method), []
    for chunk in (100, 3):
        variants = (method, SGD(1e200)), (method, SGD(0.1))
        simulation = simulation_of(subject, Layout(lanes=2, chunk=chunk), *variants)
        play(simulation, rounds=1)
        (first, second) = simulation.step(evaluate=False)
        assert (len(first.dropped), len(second.dropped)) == (5, 0)
        found.append(state_of(simulation, 1))
    assert_close(*found, "in parts")


@pytest.mark.parametrize(
    ("method", "kept"), [(Scaffold(), False), (Composed(rule=Median()), True)], ids=["sum", "median"]
)
def test_messages_are_kept_only_for_rules_that_need_all_of_them(method, kept, monkeypatch):
    seen: list[bool] = []

    def joined(found: Sequence[Outcome]) -> Outcome:
        seen.extend(bool(tree.nbytes(one.uploads)) for one in found)
        return original(found)

    original = parts.joined
    monkeypatch.setattr(parts, "joined", joined)
    play(simulation_of(prepare(method, solver=SGD(0.1)), Layout(lanes=2, chunk=2)), rounds=1)
    assert seen == [kept] * 3


def test_a_part_takes_no_memory_for_hubs_that_hear_nothing_in_it(monkeypatch):
    """Of many seeds or values, most hear nothing of a part: a table of all is as large as the cohort."""
    tables: list[tuple[int, ...]] = []

    def arranged(uploads, place, device):
        tables.append(place.shape)
        return original(uploads, place, device)

    original = parts.arranged
    monkeypatch.setattr(parts, "arranged", arranged)
    sizes = (3, 4, 2)
    partitions = {seed: ragged_partition(sizes, first=10 * seed) for seed in range(5)}
    simulation = simulation_of(prepare(FedAvg()), Layout(partitions=partitions))
    simulation.world.executor.chunk = len(sizes)
    play(simulation, rounds=1)
    assert tables == [(1, 3)] * 5
