"""What does not matter to a federation, and what does: order, absence, restarts, broken data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from consilience import tree, wire
from consilience.engine.rounds.pending import Record
from consilience.engine.rounds.simulation import Simulation
from consilience.exchange.cohort import LocalWork, failed_clients
from consilience.graphs import Complete, Star
from consilience.testing.federation import (
    SIZES,
    DoesNotApplyError,
    Layout,
    Subject,
    assert_close,
    assert_same,
    of_clients,
    play,
    ragged_partition,
    simulation_of,
    state_of,
)
from consilience.testing.watching import Place, Watch, Watched
from consilience.types import State

Result = TypeVar("Result")


def client_order_does_not_matter(subject: Subject) -> None:
    """Clients that change places take their memories along; a server's hub stays the same."""
    order = (3, 0, 4, 2, 1)
    usual = ragged_partition(SIZES)
    moved = dataclasses.replace(
        usual,
        shards=tuple(usual.shards[client] for client in order),
        holdouts=tuple(usual.holdouts[client] for client in order),
    )
    # Batches are drawn by client number, so everybody has one batch only.
    work = LocalWork(epochs=1, steps=None, batch_size=max(SIZES))
    for topology in subject.symmetric:
        first = simulation_of(subject, Layout(topology, {0: usual}, work=work, lanes=100))
        second = simulation_of(subject, Layout(topology, {0: moved}, work=work, lanes=100))
        expected = of_clients(first, play(first, rounds=2)[0], order)
        assert_close(expected, play(second, rounds=2)[0], f"with clients in another order ({topology.name})")


def clients_without_data_do_not_count(subject: Subject) -> None:
    """More clients that have no data change nothing for the others."""
    for topology in subject.symmetric:
        partitions = [ragged_partition(sizes) for sizes in (SIZES, (*SIZES, 0, 0))]
        few, many = (simulation_of(subject, Layout(topology, {0: one}, lanes=100)) for one in partitions)
        expected, found = play(few, rounds=2)[0], play(many, rounds=2)[0]
        some = of_clients(many, found, range(len(SIZES)))
        assert_close(expected, some, f"with two more clients, without data ({topology.name})")


def snapshots_continue(subject: Subject) -> None:
    """A run that is stopped, saved, loaded and continued is the uninterrupted run, bit for bit."""
    for topology in subject.topologies[:2]:
        layout = Layout(topology, participation=subject.some, lanes=2)
        straight, resumed = (simulation_of(subject, layout) for _ in range(2))
        play(straight, rounds=2)
        saved, _ = wire.decode_tensors(wire.encode_tensors(tree.flatten(straight.snapshot()), {}))
        resumed.restore(tree.unflatten(saved))
        assert_same(
            play(straight, rounds=2)[0], play(resumed, rounds=2)[0], f"after a restart ({topology.name})"
        )


def complete_graph_equals_star(subject: Subject) -> None:
    """Peers that all hear all, also themselves, are a server each, where the method is defined on both."""
    if subject.symmetric != (Star(), Complete()):
        places = " and ".join(topology.name for topology in subject.topologies)
        raise DoesNotApplyError(f"it is defined on {places} only")
    alone = Watched(subject.algorithm, _NoSelf())
    star = simulation_of(subject, Layout(Star(), lanes=100))
    graph = simulation_of(subject, Layout(Complete(), lanes=100), (alone, subject.solver))
    for simulation in (star, graph):
        play(simulation, rounds=2)
    nodes = graph.models(graph.evaluated())
    server = star.models(star.evaluated())
    if subject.algorithm.evaluated() != "client":
        server = tree.map_leaves(lambda value: value.expand(len(SIZES), *value.shape[1:]), server)
    assert_close(server, nodes, "in the nodes' models")


class _NoSelf(Watch):
    """A watch that makes a node's own message one of many: a method that leaves it out then has none."""

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        if place.role != "combine":
            return function(*given)
        hub, inbox = given
        return function(hub, dataclasses.replace(inbox, own=None, peers=inbox.weights))


def bad_uploads_are_dropped(subject: Subject) -> None:
    """A client with non-finite results is named and as if not heard; if all are such, nothing changes."""
    rate, bad = _one_failure()
    good = [client for client in range(len(SIZES)) if client != bad]
    for topology in subject.topologies[:2]:
        lost, poisoned = (simulation_of(subject, Layout(topology, lanes=2)) for _ in range(2))
        before, _ = (play(one, rounds=1)[0] for one in (poisoned, lost))
        lost.world = dataclasses.replace(lost.world, failure_rate=rate)
        play(lost, rounds=1)
        record = poisoned_round(poisoned, [bad])
        after = state_of(poisoned)
        for path, value in tree.flatten(poisoned.hub).items():
            assert value.isfinite().all(), f"the hub's {path} is not finite ({topology.name})."
        # A method that sends nothing has nothing that could be dropped.
        sends = any(record.bytes_up.values())
        if sends:
            _assert_dropped(record, [bad])
            kept, now = (_memory(poisoned, state, bad) for state in (before, after))
            assert_same(kept, now, f"in the memory of client {bad}, which was dropped ({topology.name})")
        expected, found = (of_clients(one, state_of(one), good) for one in (lost, poisoned))
        assert_close(expected, found, f"without client {bad} ({topology.name})")
        if sends:
            _assert_dropped(poisoned_round(poisoned, good), range(len(SIZES)))
            assert_same(after, state_of(poisoned), f"when all are dropped ({topology.name})")


def _one_failure() -> tuple[float, int]:
    """A failure rate at which one upload is lost in the second round, and whose."""
    for rate in np.linspace(0.01, 1, 100):
        lost = failed_clients(0, 1, np.arange(len(SIZES)), float(rate))
        if len(lost) == 1:
            return float(rate), min(lost)
    raise AssertionError("no failure rate fells one client alone")


def poisoned_round(simulation: Simulation, clients: Sequence[int]) -> Record:
    """A round in which some clients' data are not numbers any more."""
    for client in clients:
        inputs = simulation.world.pool.inputs
        assert isinstance(inputs, torch.Tensor)
        inputs[simulation.world.replicas[0].shards[client]] = torch.nan
    return simulation.step(evaluate=False)[0]


def _memory(simulation: Simulation, state: State, client: int) -> State:
    memories = {group: params for group, params in state.items() if group.startswith("memory.")}
    return of_clients(simulation, memories, [client])


def _assert_dropped(record: Record, clients: Sequence[int]) -> None:
    names = tuple(f"client {client} (upload rejected)" for client in clients)
    assert record.dropped == names, f"{record.dropped or 'nobody'} was dropped instead of {names}."


def runs_repeat_bit_for_bit(subject: Subject) -> None:
    """Two identical runs in float32, all clients at once, give the same bits."""
    for topology in subject.topologies[:2]:
        layout = Layout(topology, dtype=torch.float32, lanes=3)
        first, second = (play(simulation_of(subject, layout), rounds=2)[0] for _ in range(2))
        assert_same(first, second, f"in a second run ({topology.name})")
