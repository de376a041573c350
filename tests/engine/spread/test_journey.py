"""Replicas that are whole at workers do what one process would have done, to the bit, whoever dies."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from consilience import tree
from consilience.algorithms import METHODS, FedProx
from consilience.engine.build import simulate, simulate_elsewhere
from consilience.engine.network import Network
from consilience.engine.rounds.pace import Pace
from consilience.engine.scene import Scene
from consilience.engine.spread.dividing import of_group, united
from consilience.engine.spread.journey import Dispatch, Journey
from consilience.exchange.cohort import LocalWork
from consilience.graphs import Ring, Star
from consilience.learning.solvers import SGD
from consilience.testing.federation import assert_same, clouds, perceptron, ragged_partition

PACE = Pace(rounds=5, evaluate_every=2, keep_every=2, clients=True)


def scene(**changes) -> Scene:
    """Three seeds of a small federation of which some clients take part, and fail."""
    sizes = {0: (7, 4, 3, 1, 8), 1: (2, 9, 2, 4, 4), 2: (5, 5, 5, 5, 1)}
    whole = Scene(
        dataset=clouds((6,)),
        build=perceptron,
        partitions={seed: ragged_partition(own, seed) for seed, own in sizes.items()},
        topology=Star(),
        work=LocalWork(epochs=1, steps=None, batch_size=4),
        participation=3,
        failure_rate=0.2,
        normalize="none",
        executor="sequential",
        rounds=PACE.rounds,
    )
    return replace(whole, **changes)


def travel(where: Scene, variants, hands, *, start=None, watched=False):
    dispatch = Dispatch(hands)
    loads = np.ones(len(variants) * len(where.seeds), dtype=np.int64)
    make = functools.partial(simulate, where, variants)
    journey = Journey(dispatch, make, "fp32", loads, where.population, PACE, start, watched=watched)
    return simulate_elsewhere(where, variants, journey), journey


def at_home(where: Scene, variants):
    """What one process tells, and its snapshots, round by round."""
    simulation, records, snapshots = simulate(where, variants), [], []
    for number in range(1, PACE.rounds + 1):
        records.append(simulation.step(evaluate=PACE.evaluates(number)))
        snapshots.append(tree.map_leaves(torch.clone, simulation.snapshot()))
    return simulation, records, snapshots


def timeless(records):
    """As text: what is no number equals itself there."""
    return [repr(replace(record, seconds=0.0)) for record in records]


KINDS = {
    "fedavg": scene(),
    "scaffold": scene(),
    "fedcurv": scene(),
    "pfedme": scene(),
    "dechw": scene(topology=Ring()),
    "cfa-ge": scene(topology=Ring(), failure_rate=0.0),
    "a ring that wakes": scene(topology=Ring(), network=Network(wake=(0.5, 0.7))),
}


@pytest.mark.parametrize("name", KINDS)
def test_workers_run_replicas_as_one_process_does(name, hands):
    where = KINDS[name]
    variants = [(METHODS.get(name, METHODS["dechw"])(), SGD(0.1))]
    home, records, snapshots = at_home(where, variants)
    some = hands(2, deadly=(3, 8))
    simulation, _ = travel(where, variants, some)
    for number in range(PACE.rounds):
        found = simulation.advance().records()
        assert timeless(found) == timeless(records[number])
        if PACE.keeps(number + 1):
            snapshot = simulation.snapshot()
            assert list(snapshot) == list(snapshots[number])
            assert_same(snapshots[number], snapshot, f"{name}, round {number + 1}")
    assert some.most == 2  # both were at work
    assert simulation.clients() == home.clients()
    rows = home.evaluated()
    assert_same(home.models(rows), simulation.models(rows), name)


def test_values_of_a_sweep_stay_numbers_that_are_swept(hands):
    """One variant alone would have a number of Python in its place, and round otherwise."""
    variants = [(FedProx(mu=mu), SGD(0.1)) for mu in (0.1, 0.2)]
    where = scene(dtype=torch.float32)
    _, records, snapshots = at_home(where, variants)
    simulation, _ = travel(where, variants, hands(4))
    for number in range(PACE.rounds):
        assert timeless(simulation.advance().records()) == timeless(records[number])
    assert_same(snapshots[-1], simulation.snapshot(), "the last round")


def test_a_snapshot_is_taken_apart_and_put_together():
    for name in ("scaffold", "cfa-ge", "a ring that wakes"):
        where = KINDS[name]
        _, _, snapshots = at_home(where, [(METHODS.get(name, METHODS["dechw"])(), SGD(0.1))])
        groups = [(0, 2), (1,)]
        parts = [of_group(snapshots[2], group, where.population) for group in groups]
        assert_same(snapshots[2], united(parts, groups, where.population), name)
        assert all((part["rows"]["number"] < 2 * where.population).all() for part in parts)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_journey_begins_with_a_snapshot_and_any_number_of_workers(count, hands):
    where, variants = scene(), [(METHODS["scaffold"](), SGD(0.1))]
    _, records, snapshots = at_home(where, variants)
    simulation, _ = travel(where, variants, hands(count), start=snapshots[1])
    assert simulation.round == 2
    for number in range(2, PACE.rounds):
        assert timeless(simulation.advance().records()) == timeless(records[number])
    assert_same(snapshots[-1], simulation.snapshot(), f"{count} workers")


@pytest.mark.parametrize("deadly", [(), (4,), (5,)])
def test_who_watches_sees_the_models_of_every_round(deadly, hands):
    where, variants = scene(), [(METHODS["scaffold"](), SGD(0.1))]
    home, some = simulate(where, variants), hands(2, deadly)
    simulation, _ = travel(where, variants, some, watched=True)
    for number in range(PACE.rounds):
        home.step(evaluate=False)
        simulation.advance()
        assert all(leg.until <= number + 1 for leg in some.legs)  # nobody ran ahead
        rows = home.evaluated()
        assert_same(home.models(rows), simulation.models(rows), f"round {number + 1}")


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("deadly", [(), (4,)])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_a_journey_that_is_halted_ends_where_the_furthest_is_with_a_snapshot(after, deadly, watched, hands):
    """Workers run ahead of who looks, so that there may be no state of the round that was looked at last."""
    where, variants = scene(), [(METHODS["scaffold"](), SGD(0.1))]
    _, records, snapshots = at_home(where, variants)
    some = hands(2, deadly)
    simulation, _ = travel(where, variants, some, watched=watched)
    found = [simulation.advance().records() for _ in range(after)]
    end = simulation.halt()
    assert after <= end
    found += [simulation.advance().records() for _ in range(after, end)]
    assert_same(snapshots[end - 1], simulation.snapshot(), f"halted after {after}")
    assert [timeless(one) for one in found] == [timeless(one) for one in records[:end]]
    assert max(leg.until for leg in some.legs) == end


def test_what_a_worker_warns_of_is_said_here_once(hands, caplog):
    where = scene(participation=5, failure_rate=0.0)
    variants = [(METHODS["fedavg"](), SGD(1e200))]  # everybody diverges
    at_home(where, variants)
    expected = sorted(caplog.messages)
    caplog.clear()
    simulation, _ = travel(where, variants, hands(2, [6]))
    for _ in range(PACE.rounds):
        simulation.advance()
    assert expected
    assert sorted(caplog.messages) == expected


def test_nobody_runs_far_ahead_of_who_waits(hands):
    some = hands(2)
    where, variants = scene(), [(METHODS["fedavg"](), SGD(0.1))]
    pace = replace(PACE, rounds=50, keep_every=3)
    make = functools.partial(simulate, where, variants)
    journey = Journey(Dispatch(some), make, "fp32", np.ones(3, dtype=np.int64), where.population, pace)
    journey.next(wait=True)
    for _ in range(100):
        journey.next(wait=False)
    assert all(leg.until <= journey.round + 2 * pace.keep_every for leg in some.legs)
