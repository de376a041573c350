"""The properties that the engine relies on, one function each; the docstring says what is claimed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from consilience import sweeping, tree, wire
from consilience.algorithm import Algorithm, Inbox, Phase
from consilience.engine.rounds.simulation import Record, Simulation
from consilience.exchange.cohort import LocalWork, failed_clients
from consilience.graphs.complete import Complete
from consilience.graphs.star import Star
from consilience.learning.solvers import Solver
from consilience.learning.task import Task
from consilience.testing.federation import (
    SIZES,
    WORK,
    Layout,
    Property,
    Subject,
    assert_close,
    assert_same,
    of_clients,
    play,
    ragged_partition,
    simulation_of,
    state_of,
)
from consilience.testing.watching import Place, Watch, watch_rounds, watched
from consilience.types import State

Part = TypeVar("Part")
Result = TypeVar("Result")


def states_are_named_tensors(subject: Subject) -> None:
    """Hubs, memories and messages are dicts of dicts of tensors, and their schemas never change."""
    for topology in subject.topologies[:2]:
        list(watch_rounds(subject, topology, _Schemas()))


class _Schemas(Watch):
    """Compares the schema of every state with that of its first appearance."""

    def __init__(self) -> None:
        self.known: dict[str, object] = {}

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        result = function(*given)
        where = f"of {place.exchange} of {place.algorithm}"
        if place.role == "local":
            kind = type(result).__name__
            assert isinstance(result, tuple), f"local gives a {kind}, not an upload and a memory."
            self.see(f"the upload {where}", result[0])
            self.see("the memory of a link" if _phase(place).replies else "the memory", result[1])
        else:
            others = {
                "init_memory": "the memory",
                "init_link": "the memory of a link",
                "broadcast": f"the download {where}",
            }
            self.see(others.get(place.role, "the hub"), result)
        return result

    def see(self, what: str, state: object) -> None:
        """A state is made."""
        assert isinstance(state, dict), f"{what} is a {type(state).__name__}, not a dict."
        for group, params in state.items():
            assert isinstance(params, dict), f"{what} has a {type(params).__name__} as group {group!r}."
            for name, value in params.items():
                kind = type(value).__name__
                assert isinstance(value, Tensor), f"{what} has a {kind} at {group}/{name}, not a tensor."
        tensors = {path: (tuple(v.shape), v.dtype) for path, v in tree.flatten(state).items()}
        # Groups without tensors count too: they are part of what others may rely on.
        schema = f"{sorted(state)}, {tensors}"
        before = self.known.setdefault(what, schema)
        assert schema == before, f"{what} was {before} and is now {schema}."


def _phase(place: Place) -> Phase:
    """The exchange that a function belongs to."""
    kind, number = place.exchange.split()
    return (place.algorithm.setup() if kind == "setup" else place.algorithm.phases())[int(number)]


def inputs_stay_as_they_are(subject: Subject) -> None:
    """No function of a method writes to what it is given."""
    for topology in subject.topologies[:2]:
        list(watch_rounds(subject, topology, _Untouched()))


class _Untouched(Watch):
    """Compares all arguments before and after a call."""

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        before = [tree.map_leaves(torch.clone, state) for state in _states(given)]
        result = function(*given)
        for old, new in zip(before, _states(given), strict=True):
            assert_same(old, new, f"in what {place.role} was given")
        return result


def _states(given: tuple[Any, ...]) -> list[State]:
    """The states among the arguments of a method's function."""
    states: list[State] = []
    for value in given:
        if isinstance(value, Inbox):
            shares = {"weights": value.weights, "peers": value.peers, "population": value.population}
            states += [value.messages, value.own or {}, {"shares": shares}]
        elif isinstance(value, dict):
            states.append(value)
    return states


def nothing_is_kept_elsewhere(subject: Subject) -> None:
    """Results depend on hubs, memories, messages and data alone: no counter, no random numbers of its own."""
    for topology in subject.topologies[:2]:
        first, second = (play(simulation_of(subject, Layout(topology)), rounds=2)[0] for _ in range(2))
        assert_same(first, second, f"in a second run ({topology.name})")


def messages_survive_the_wire(subject: Subject) -> None:
    """Messages come out of the wire format as they went in, and exactly their bytes are counted."""
    with torch.random.fork_rng(devices=[]):
        module = subject.module()
    # A server's first message, from a hub that no simulation has stacked.
    model = Task(module).weights_of(module)
    _send(subject.algorithm.broadcast(subject.algorithm.init_hub(model)))
    for topology in subject.topologies:
        everybody = len(SIZES) - 1
        listeners = {"star": 1, "ring": 2, "complete": everybody}[topology.name]
        watch = _Wire(listeners, flooded=listeners if isinstance(topology, Star) else everybody)
        for record in watch_rounds(subject, topology, watch):
            up, down = sum(record.bytes_up.values()), sum(record.bytes_down.values())
            sent = watch.up
            received = watch.down if isinstance(topology, Star) else sent
            counts = f"{up} bytes up and {down} down were counted, {sent} and {received} were sent"
            assert (up, down) == (sent, received), f"{counts} ({topology.name})."
            watch.up = watch.down = 0


class _Wire(Watch):
    """Sends every message and counts bytes, of an upload those of all copies."""

    def __init__(self, listeners: int, flooded: int) -> None:
        self.listeners, self.flooded = listeners, flooded
        self.up = self.down = 0

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        result = function(*given)
        if place.role == "local":
            upload, _ = cast(tuple[State, State], result)
            phase = _phase(place)
            cached = () if place.exchange.startswith("setup") else place.algorithm.cached
            copies = 1 if phase.replies else self.flooded if phase.flooded else self.listeners
            sent = {group: params for group, params in upload.items() if group not in cached}
            self.up += copies * _send(sent)
            asked = {group: params for group, params in given[1].items() if group not in phase.known}
            self.down += _send(asked)
        return result


def _send(message: State) -> int:
    """The length of a message on the wire."""
    data = wire.encode(message, wire.Header(round=1, sender=2))
    if data:  # an empty message is not sent at all
        arrived, _ = wire.decode(data)
        assert arrived.keys() == message.keys(), f"of the groups {list(message)}, {list(arrived)} arrived."
        assert_same(tree.map_leaves(Tensor.cpu, message), arrived, "in a message that was sent")
    return len(data)


def batched_equals_sequential(subject: Subject) -> None:
    """All clients at once give the same as one after the other, in any number of lanes and chunks."""
    for topology in subject.topologies:
        _compare_lanes(
            subject, Layout(topology, work=WORK), lanes=(1, 100) if isinstance(topology, Star) else (2,)
        )
    # Some clients' memories then stay behind.
    _compare_lanes(subject, Layout(subject.topologies[0], participation=subject.some, work=WORK), lanes=(2,))


def _compare_lanes(subject: Subject, layout: Layout, lanes: Sequence[int]) -> None:
    expected = play(simulation_of(subject, layout), rounds=3)[0]
    for count in lanes:
        # Chunks that do not divide the cohort.
        batched = dataclasses.replace(layout, lanes=count, chunk=count + 1)
        found = play(simulation_of(subject, batched), rounds=3)[0]
        assert_close(expected, found, f"in lanes of {count} ({layout.topology.name})")


def buffers_and_dropout_work(subject: Subject) -> None:
    """Batched equals sequential with batch normalisation and dropout too, and buffers stay sane."""
    for topology in subject.topologies[:2]:
        layouts = [Layout(topology, images=True, lanes=lanes, work=WORK) for lanes in (0, 2)]
        expected, found = (play(simulation_of(subject, layout), rounds=2)[0] for layout in layouts)
        assert_close(expected, found, f"in 2 lanes ({topology.name})")
        for path, value in tree.flatten(found).items():
            assert value.isfinite().all(), f"{path} is not finite ({topology.name})."
            counter = path.endswith("num_batches_tracked")
            assert not (counter and value.is_floating_point()), (
                f"{path} is no whole number ({topology.name})."
            )


def replicas_do_not_touch(subject: Subject) -> None:
    """Seeds and hyper-parameters that share a computation give what each of them gives alone."""
    for topology in subject.topologies[:2]:
        # The seeds' cohorts differ in size: one has a client without data.
        partitions = {0: ragged_partition(SIZES), 1: ragged_partition((5, 0, 8, 2, 3), first=40)}
        layout = Layout(topology, partitions, lanes=4)
        variants = [pair for pair in _variants(subject) if subject.refusal(*pair, topology) is None]
        together = play(simulation_of(subject, layout, *variants), rounds=2)
        for seed, partition in partitions.items():
            alone = simulation_of(subject, dataclasses.replace(layout, partitions={seed: partition}))
            what = f"with seed {seed} among others ({topology.name})"
            assert_close(play(alone, rounds=2)[0], together[seed], what)
        for number, variant in enumerate(variants):
            for seed, expected in enumerate(play(simulation_of(subject, layout, variant), rounds=2)):
                what = f"with {variant} among others ({topology.name})"
                assert_close(expected, together[len(partitions) * number + seed], what)


def _variants(subject: Subject) -> list[tuple[Algorithm, Solver]]:
    """The subject, with each of its floats changed in turn, and with another learning rate."""
    algorithm, solver = subject.algorithm, subject.solver
    return [
        (algorithm, solver),
        *((nudged, solver) for nudged in _nudged(algorithm)),
        (algorithm, dataclasses.replace(cast(Any, solver), lr=1.1 * solver.lr)),
    ]


def _nudged(part: Part) -> Iterator[Part]:
    """A part with each of its floats changed in turn, at any depth."""
    for entry in dataclasses.fields(cast(Any, part)):
        value = getattr(part, entry.name)
        choices: list[tuple[Any, ...]] = []
        if sweeping.is_part(value):
            choices = [(inner,) for inner in _nudged(value)]
        elif isinstance(value, float):
            choices = [(1.1 * value or 0.1, 0.9 * value)]
        for values in choices:
            yield from _first_allowed(part, entry.name, values)


def _first_allowed(part: Part, name: str, values: Sequence[Any]) -> list[Part]:
    """The part with the first of some values for a field that it does not refuse."""
    for value in values:
        with contextlib.suppress(ValueError):
            return [dataclasses.replace(cast(Any, part), **{name: value})]
    return []


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
        return
    alone = watched(subject.algorithm, _NoSelf())
    star = simulation_of(subject, Layout(Star(), lanes=100))
    graph = simulation_of(subject, Layout(Complete(), lanes=100), (alone, subject.solver))
    for simulation in (star, graph):
        play(simulation, rounds=2)
    nodes = graph.models(graph.evaluated())
    server = star.models(star.evaluated())
    if not subject.algorithm.personal:
        server = tree.map_leaves(lambda value: value.expand(len(SIZES), *value.shape[1:]), server)
    assert_close(server, nodes, "in the nodes' models")


class _NoSelf(Watch):
    """A node's own message is one of many: a method that leaves it out then has none to leave out."""

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
        record = _poison(poisoned, [bad])
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
            _assert_dropped(_poison(poisoned, good), range(len(SIZES)))
            assert_same(after, state_of(poisoned), f"when all are dropped ({topology.name})")


def _one_failure() -> tuple[float, int]:
    """A failure rate at which one upload is lost in the second round, and whose."""
    for rate in np.linspace(0.01, 1, 100):
        lost = failed_clients(0, 1, np.arange(len(SIZES)), float(rate))
        if len(lost) == 1:
            return float(rate), min(lost)
    raise AssertionError("no failure rate fells one client alone")


def _poison(simulation: Simulation, clients: Sequence[int]) -> Record:
    """A round in which some clients' data are not numbers any more."""
    for client in clients:
        simulation.world.pool.inputs[simulation.world.replicas[0].shards[client]] = torch.nan
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


PROPERTIES: tuple[Property, ...] = (
    states_are_named_tensors,
    inputs_stay_as_they_are,
    nothing_is_kept_elsewhere,
    messages_survive_the_wire,
    batched_equals_sequential,
    buffers_and_dropout_work,
    replicas_do_not_touch,
    client_order_does_not_matter,
    clients_without_data_do_not_count,
    snapshots_continue,
    complete_graph_equals_star,
    bad_uploads_are_dropped,
    runs_repeat_bit_for_bit,
)
"""What `check_algorithm` checks, in this order."""
