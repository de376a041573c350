"""Does a method keep the contract? `check_algorithm` runs it through everything that the engine relies on.

    from consilience.testing import check_algorithm

    def test_my_method() -> None:
        check_algorithm(MyMethod(strength=0.5))

Each property is a function whose docstring says what it claims. `PROPERTIES` has them in the order in which
they are checked: first what the method's functions do, then what the engine makes of them. Federations
are tiny and ragged, and arithmetic is float64 wherever equality up to rounding is claimed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from consilience import numbers, tree
from consilience.algorithm import Algorithm, Inbox, Phase, Setting
from consilience.client import Client
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.deploy import wire
from consilience.engine.build import Scene, simulate
from consilience.engine.cohort import LocalWork, failed_clients
from consilience.engine.lanes import Batched
from consilience.engine.simulation import Record, Simulation
from consilience.models.mlp import MLP
from consilience.solver import SGD, Solver
from consilience.task import Task
from consilience.topology import Complete, Ring, Star, Topology
from consilience.types import State

SIZES = (7, 4, 3, 1, 8)
"""Training samples of the clients."""
HELD_OUT = 2
"""Samples that each of them keeps back, where the method asks for it."""
INPUTS, IMAGES, CLASSES = (6,), (1, 4, 4), 3
"""The shape of an input, also of the built-in convolutional model's, and the number of classes."""
WORK = LocalWork(epochs=2, steps=None, batch_size=4)
SHORT_WORK = LocalWork(epochs=1, steps=None, batch_size=4)
"""Where a second epoch would show nothing new."""
TOLERANCE = 1e-9
"""Of a difference in float64, relative to the largest number of its tensor."""
SOLVERS: tuple[Solver, ...] = (SGD(0.1, momentum=0.5, weight_decay=0.01), SGD(0.1))
TOPOLOGIES: tuple[Topology, ...] = (Star(), Ring(), Complete())

Module = Callable[[], nn.Module]
Result = TypeVar("Result")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Subject:
    """A method under test, and settings that it accepts."""

    algorithm: Algorithm
    solver: Solver
    module: Module
    topologies: tuple[Topology, ...]
    holdout: bool
    features: bool
    device: torch.device

    def refusal(self, algorithm: Algorithm, solver: Solver, topology: Topology) -> str | None:
        """Why another variant cannot work in this setting, or None."""
        return algorithm.refuse(
            Setting(
                graph=not isinstance(topology, Star),
                solver=solver,
                epochs=WORK.epochs,
                holdout=self.holdout,
                features=self.features,
                failures=False,
            )
        )

    @property
    def symmetric(self) -> tuple[Topology, ...]:
        """The topologies in which all clients have the same place."""
        return tuple(topology for topology in self.topologies if not isinstance(topology, Ring))


Property = Callable[[Subject], None]


def check_algorithm(
    algorithm: Algorithm, *, module: Module | None = None, solver: Solver | None = None, device: str = "cpu"
) -> None:
    """Check that a method has all `PROPERTIES`.

    Args:
        algorithm: The method, with the options to check.
        module: Makes the model to train, from inputs [batch, 6] to 3 logits; by default a small perceptron.
        solver: The local optimiser; by default SGD, with momentum and weight decay where the method allows.
        device: Where to compute.

    Raises:
        AssertionError: The message names the method, the property that it lacks and what was found.
    """
    subject = prepare(algorithm, module=module, solver=solver, device=device)
    for one in PROPERTIES:
        check_property(one, subject)


def prepare(
    algorithm: Algorithm, *, module: Module | None = None, solver: Solver | None = None, device: str = "cpu"
) -> Subject:
    """What `check_property` needs; the arguments are those of `check_algorithm`.

    The setting is the first that the method accepts in as many topologies as it ever does.
    """
    build = module or perceptron
    with torch.random.fork_rng(devices=[]):
        features = Task(build()).has_features
    subjects: list[Subject] = []
    reasons: set[str] = set()
    for holdout in (False, True):
        for chosen in SOLVERS if solver is None else (solver,):
            every = Subject(algorithm, chosen, build, TOPOLOGIES, holdout, features, torch.device(device))
            refusals = {topology: every.refusal(algorithm, chosen, topology) for topology in TOPOLOGIES}
            accepted = tuple(topology for topology, reason in refusals.items() if reason is None)
            subjects.append(dataclasses.replace(every, topologies=accepted))
            reasons |= {reason for reason in refusals.values() if reason}
    best = max(subjects, key=lambda subject: len(subject.topologies))
    assert best.topologies, f"{algorithm.name} refuses every setting: {'; '.join(sorted(reasons))}"
    return best


def check_property(one: Property, subject: Subject) -> None:
    """Check one of the `PROPERTIES`; whatever goes wrong becomes an AssertionError that names it."""
    try:
        one(subject)
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise AssertionError(
            f"{subject.algorithm.name} lacks the property {one.__name__}: {one.__doc__} "
            f"Found: {_hint(error)}{kind}{error}"
        ) from error


def _hint(error: Exception) -> str:
    """What torch's refusals to map a function over clients mean for a method."""
    if ".item()" in str(error) or "data-dependent" in str(error):
        return "Python code that depends on a tensor's value; torch.where works for many clients at once. "
    if "randomness" in str(error):
        return "random numbers that are not the engine's. "
    return ""


def perceptron() -> nn.Module:
    """The model that methods are checked with by default."""
    return MLP((8,)).build(INPUTS, CLASSES)


def convolutional() -> nn.Module:
    """The model with batch normalisation and dropout."""
    # No bias: batch normalisation takes it out again, and its gradient would be rounding errors alone.
    body = (nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(12, CLASSES))


@dataclass(frozen=True)
class _Layout:
    """A federation."""

    topology: Topology = field(default_factory=Star)
    partitions: dict[int, Partition] = field(default_factory=lambda: {0: _partition(SIZES)})
    """By seed."""
    participation: int = 100
    work: LocalWork = SHORT_WORK
    dtype: torch.dtype = torch.float64
    images: bool = False
    """Whether the model is the built-in convolutional one."""
    lanes: int = 0
    """0: one client after the other."""
    chunk: int = 100


def _simulation(subject: Subject, layout: _Layout, *variants: tuple[Algorithm, Solver]) -> Simulation:
    """A federation before its first round; by default of the subject's method alone."""
    scene = Scene(
        dataset=_clouds(IMAGES if layout.images else INPUTS),
        build=convolutional if layout.images else subject.module,
        partitions={
            seed: one if subject.holdout else dataclasses.replace(one, holdouts=_nothing(one))
            for seed, one in layout.partitions.items()
        },
        topology=layout.topology,
        work=layout.work,
        participation=layout.participation,
        normalize="none",
        executor="sequential",
        device=subject.device,
        dtype=layout.dtype,
    )
    simulation = simulate(scene, variants or ((subject.algorithm, subject.solver),))
    if not layout.lanes:
        return simulation
    batched = Batched(simulation.world.pool, layout.lanes, layout.chunk)
    return Simulation(dataclasses.replace(simulation.world, executor=batched), simulation.algorithm)


def _clouds(shape: tuple[int, ...]) -> Dataset:
    """Three overlapping clouds of points; neighbouring rows are of different classes."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(100) % CLASSES
    centres, spread = (
        torch.randn(count, *shape, generator=random, dtype=torch.float64) for count in (CLASSES, 100)
    )
    inputs = centres[targets] + spread
    return Dataset.from_arrays("clouds", inputs, targets, inputs[:9], targets[:9], classes=CLASSES)


def _partition(sizes: Sequence[int], first: int = 0) -> Partition:
    """Clients with these numbers of training rows, one after the other."""
    cuts = first + np.cumsum([0, *(size + HELD_OUT for size in sizes)])
    rows = [np.arange(begin, end, dtype=np.int64) for begin, end in itertools.pairwise(cuts)]
    return Partition(tuple(r[HELD_OUT:] for r in rows), tuple(r[:HELD_OUT] for r in rows), {}, 0)


def _nothing(partition: Partition) -> tuple[Any, ...]:
    return tuple(rows[:0] for rows in partition.holdouts)


def _play(simulation: Simulation, rounds: int) -> list[State]:
    """After some rounds, by replica: its hub, its clients' memories and the training losses."""
    losses: list[dict[str, Tensor]] = [{} for _ in simulation.world.replicas]
    for _ in range(rounds):
        for record in simulation.step(evaluate=False):
            if record.train_loss is not None:
                loss = torch.tensor(record.train_loss, dtype=torch.float64)
                losses[record.replica][f"round {record.round}"] = loss
    return [{**_state(simulation, replica), "loss": known} for replica, known in enumerate(losses)]


def _state(simulation: Simulation, replica: int = 0) -> State:
    """A replica's hub and memories."""
    clients = np.arange(simulation.world.population) + replica * simulation.world.population
    hub, memories = tree.index(simulation.hub, replica), simulation.store.load(clients)
    return {f"hub.{g}": p for g, p in hub.items()} | {f"memory.{g}": p for g, p in memories.items()}


def _of_clients(simulation: Simulation, state: State, clients: Sequence[int]) -> State:
    """A replica's state with some of its clients, in some order."""
    chosen = torch.tensor(clients, device=simulation.world.device)
    own = ("hub.", "memory.") if simulation.world.graph else ("memory.",)
    return {
        group: {name: value[chosen] for name, value in params.items()} if group.startswith(own) else params
        for group, params in state.items()
    }


def _assert_close(expected: State, found: State, what: str) -> None:
    """Equal up to rounding."""
    for path, value, other in _pairs(expected, found, what):
        if not value.is_floating_point():
            assert torch.equal(value, other), f"{what}, {path} differs."
        elif value.numel():
            gap, scale = float((value - other).abs().max()), float(value.abs().max())
            assert gap <= TOLERANCE * scale, f"{what}, {path} of scale {scale:.3g} differs by {gap:.3g}."


def _assert_same(expected: State, found: State, what: str) -> None:
    """Equal bit for bit."""
    for path, value, other in _pairs(expected, found, what):
        assert torch.equal(value, other), f"{what}, {path} is not the same bit for bit."


def _pairs(expected: State, found: State, what: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    left, right = tree.flatten(expected), tree.flatten(found)
    assert left.keys() == right.keys(), f"{what}, there is {sorted(right)} instead of {sorted(left)}."
    for path, value in left.items():
        kinds = [f"{one.dtype} {tuple(one.shape)}" for one in (value, right[path])]
        assert kinds[0] == kinds[1], f"{what}, {path} is {kinds[1]} instead of {kinds[0]}."
        yield path, value, right[path]


@dataclass(frozen=True)
class _Place:
    """A function of a method."""

    role: str
    """Its name in the contract."""
    algorithm: Algorithm
    """Whose it is: the method in force in the round."""
    exchange: str = ""
    """Which exchange of the round or of the setup it belongs to."""


class _Watch:
    """Is told of every call of a method's functions."""

    def call(self, place: _Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        """The result of the call, looked at or not."""
        return function(*given)


@dataclass(frozen=True)
class _Watched(Algorithm):
    """A method that does what another one does, under a watch."""

    inner: Algorithm
    watch: _Watch

    def init_hub(self, model: State) -> State:
        return self._watching("init_hub", self.inner.init_hub)(model)

    def init_memory(self, model: State) -> State:
        return self._watching("init_memory", self.inner.init_memory)(model)

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        return self.phases()[0].local(client, down, memory)

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._phase(one, f"exchange {i}") for i, one in enumerate(self.inner.phases()))

    def setup(self) -> tuple[Phase, ...]:
        return tuple(self._phase(one, f"setup {i}") for i, one in enumerate(self.inner.setup()))

    def at(self, round_number: int) -> Algorithm:
        return _watched(self.inner.at(round_number), self.watch)

    def model(self, hub: State, memory: State) -> State:
        return self.inner.model(hub, memory)

    def refuse(self, setting: Setting) -> str | None:
        return self.inner.refuse(setting)

    def _phase(self, phase: Phase, name: str) -> Phase:
        return Phase(
            self._watching("broadcast", phase.broadcast, name),
            self._watching("local", phase.local, name),
            self._watching("combine", phase.combine, name),
        )

    def _watching(
        self, role: str, function: Callable[..., Result], exchange: str = ""
    ) -> Callable[..., Result]:
        place = _Place(role, self.inner, exchange)
        return lambda *given: self.watch.call(place, function, given)


def _watched(algorithm: Algorithm, watch: _Watch) -> Algorithm:
    # What a class says about its method, the watched one says too.
    facts = {"name": algorithm.name, "personal": algorithm.personal, "cached": algorithm.cached}
    watched: Algorithm = type("Watched", (_Watched,), facts)(algorithm, watch)
    return watched


def _watch_rounds(subject: Subject, topology: Topology, watch: _Watch) -> Iterator[Record]:
    """Two rounds under a watch, client after client."""
    layout = _Layout(topology)
    simulation = _simulation(subject, layout, (_watched(subject.algorithm, watch), subject.solver))
    return (simulation.step(evaluate=False)[0] for _ in range(2))


def states_are_named_tensors(subject: Subject) -> None:
    """Hubs, memories and messages are dicts of dicts of tensors, and their schemas never change."""
    for topology in subject.topologies[:2]:
        list(_watch_rounds(subject, topology, _Schemas()))


class _Schemas(_Watch):
    """Compares the schema of every state with that of its first appearance."""

    def __init__(self) -> None:
        self.known: dict[str, object] = {}

    def call(self, place: _Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        result = function(*given)
        where = f"of {place.exchange} of {place.algorithm}"
        if place.role == "local":
            kind = type(result).__name__
            assert isinstance(result, tuple), f"local gives a {kind}, not an upload and a memory."
            self.see(f"the upload {where}", result[0])
            self.see("the memory", result[1])
        else:
            others = {"init_memory": "the memory", "broadcast": f"the download {where}"}
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


def inputs_stay_as_they_are(subject: Subject) -> None:
    """No function of a method writes to what it is given."""
    for topology in subject.topologies[:2]:
        list(_watch_rounds(subject, topology, _Untouched()))


class _Untouched(_Watch):
    """Compares all arguments before and after a call."""

    def call(self, place: _Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        before = [tree.map_leaves(torch.clone, state) for state in _states(given)]
        result = function(*given)
        for old, new in zip(before, _states(given), strict=True):
            _assert_same(old, new, f"in what {place.role} was given")
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
        first, second = (_play(_simulation(subject, _Layout(topology)), rounds=2)[0] for _ in range(2))
        _assert_same(first, second, f"in a second run ({topology.name})")


def messages_survive_the_wire(subject: Subject) -> None:
    """Messages come out of the wire format as they went in, and exactly their bytes are counted."""
    with torch.random.fork_rng(devices=[]):
        module = subject.module()
    # A server's first message, from a hub that no simulation has stacked.
    model = Task(module).weights_of(module)
    _send(subject.algorithm.broadcast(subject.algorithm.init_hub(model)))
    for topology in subject.topologies:
        watch = _Wire()
        listeners = {"star": 1, "ring": 2, "complete": len(SIZES) - 1}[topology.name]
        for record in _watch_rounds(subject, topology, watch):
            up, down = sum(record.bytes_up.values()), sum(record.bytes_down.values())
            sent = listeners * watch.up
            received = watch.down if isinstance(topology, Star) else sent
            counts = f"{up} bytes up and {down} down were counted, {sent} and {received} were sent"
            assert (up, down) == (sent, received), f"{counts} ({topology.name})."
            watch.up = watch.down = 0


class _Wire(_Watch):
    """Sends every message and counts bytes."""

    def __init__(self) -> None:
        self.up = self.down = 0

    def call(self, place: _Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        result = function(*given)
        if place.role == "local":
            upload, _ = cast(tuple[State, State], result)
            cached = place.algorithm.cached if place.exchange.startswith("exchange") else ()
            self.up += _send({group: params for group, params in upload.items() if group not in cached})
            self.down += _send(given[1])
        return result


def _send(message: State) -> int:
    """The length of a message on the wire."""
    data = wire.encode(message, wire.Header(round=1, sender=2))
    if data:  # an empty message is not sent at all
        arrived, _ = wire.decode(data)
        assert arrived.keys() == message.keys(), f"of the groups {list(message)}, {list(arrived)} arrived."
        _assert_same(tree.map_leaves(Tensor.cpu, message), arrived, "in a message that was sent")
    return len(data)


def batched_equals_sequential(subject: Subject) -> None:
    """All clients at once give the same as one after the other, in any number of lanes and chunks."""
    for topology in subject.topologies:
        _compare_lanes(
            subject, _Layout(topology, work=WORK), lanes=(1, 100) if isinstance(topology, Star) else (2,)
        )
    # Some clients' memories then stay behind.
    _compare_lanes(subject, _Layout(subject.topologies[0], participation=3, work=WORK), lanes=(2,))


def _compare_lanes(subject: Subject, layout: _Layout, lanes: Sequence[int]) -> None:
    expected = _play(_simulation(subject, layout), rounds=3)[0]
    for count in lanes:
        # Chunks that do not divide the cohort.
        batched = dataclasses.replace(layout, lanes=count, chunk=count + 1)
        found = _play(_simulation(subject, batched), rounds=3)[0]
        _assert_close(expected, found, f"in lanes of {count} ({layout.topology.name})")


def buffers_and_dropout_work(subject: Subject) -> None:
    """Batched equals sequential with batch normalisation and dropout too, and buffers stay sane."""
    for topology in subject.topologies[:2]:
        layouts = [_Layout(topology, images=True, lanes=lanes, work=WORK) for lanes in (0, 2)]
        expected, found = (_play(_simulation(subject, layout), rounds=2)[0] for layout in layouts)
        _assert_close(expected, found, f"in 2 lanes ({topology.name})")
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
        partitions = {0: _partition(SIZES), 1: _partition((5, 0, 8, 2, 3), first=40)}
        layout = _Layout(topology, partitions, lanes=4)
        variants = [pair for pair in _variants(subject) if subject.refusal(*pair, topology) is None]
        together = _play(_simulation(subject, layout, *variants), rounds=2)
        for seed, partition in partitions.items():
            alone = _simulation(subject, dataclasses.replace(layout, partitions={seed: partition}))
            what = f"with seed {seed} among others ({topology.name})"
            _assert_close(_play(alone, rounds=2)[0], together[seed], what)
        for number, variant in enumerate(variants):
            for seed, expected in enumerate(_play(_simulation(subject, layout, variant), rounds=2)):
                what = f"with {variant} among others ({topology.name})"
                _assert_close(expected, together[len(partitions) * number + seed], what)


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
        if numbers.is_part(value):
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
    usual = _partition(SIZES)
    moved = dataclasses.replace(
        usual,
        shards=tuple(usual.shards[client] for client in order),
        holdouts=tuple(usual.holdouts[client] for client in order),
    )
    # Batches are drawn by client number, so everybody has one batch only.
    work = LocalWork(epochs=1, steps=None, batch_size=max(SIZES))
    for topology in subject.symmetric:
        first = _simulation(subject, _Layout(topology, {0: usual}, work=work, lanes=100))
        second = _simulation(subject, _Layout(topology, {0: moved}, work=work, lanes=100))
        expected = _of_clients(first, _play(first, rounds=2)[0], order)
        _assert_close(
            expected, _play(second, rounds=2)[0], f"with clients in another order ({topology.name})"
        )


def clients_without_data_do_not_count(subject: Subject) -> None:
    """More clients that have no data change nothing for the others."""
    for topology in subject.symmetric:
        partitions = [_partition(sizes) for sizes in (SIZES, (*SIZES, 0, 0))]
        few, many = (_simulation(subject, _Layout(topology, {0: one}, lanes=100)) for one in partitions)
        expected, found = _play(few, rounds=2)[0], _play(many, rounds=2)[0]
        some = _of_clients(many, found, range(len(SIZES)))
        _assert_close(expected, some, f"with two more clients, without data ({topology.name})")


def snapshots_continue(subject: Subject) -> None:
    """A run that is stopped, saved, loaded and continued is the uninterrupted run, bit for bit."""
    for topology in subject.topologies[:2]:
        layout = _Layout(topology, participation=3, lanes=2)
        straight, resumed = (_simulation(subject, layout) for _ in range(2))
        _play(straight, rounds=2)
        saved, _ = wire.decode_tensors(wire.encode_tensors(tree.flatten(straight.snapshot()), {}))
        resumed.restore(tree.unflatten(saved))
        _assert_same(
            _play(straight, rounds=2)[0], _play(resumed, rounds=2)[0], f"after a restart ({topology.name})"
        )


def complete_graph_equals_star(subject: Subject) -> None:
    """Peers that all hear all, also themselves, are a server each, where the method is defined on both."""
    if subject.symmetric != (Star(), Complete()):
        return
    watched = _watched(subject.algorithm, _NoSelf())
    star = _simulation(subject, _Layout(Star(), lanes=100))
    graph = _simulation(subject, _Layout(Complete(), lanes=100), (watched, subject.solver))
    for simulation in (star, graph):
        _play(simulation, rounds=2)
    nodes = graph.models(graph.evaluated())
    server = star.models(star.evaluated())
    if not subject.algorithm.personal:
        server = tree.map_leaves(lambda value: value.expand(len(SIZES), *value.shape[1:]), server)
    _assert_close(server, nodes, "in the nodes' models")


class _NoSelf(_Watch):
    """A node's own message is one of many: a method that leaves it out then has none to leave out."""

    def call(self, place: _Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        if place.role != "combine":
            return function(*given)
        hub, inbox = given
        return function(hub, dataclasses.replace(inbox, own=None, peers=inbox.weights))


def bad_uploads_are_dropped(subject: Subject) -> None:
    """A client with non-finite results is named and as if not heard; if all are such, nothing changes."""
    rate, bad = _one_failure()
    good = [client for client in range(len(SIZES)) if client != bad]
    for topology in subject.topologies[:2]:
        lost, poisoned = (_simulation(subject, _Layout(topology, lanes=2)) for _ in range(2))
        before, _ = (_play(one, rounds=1)[0] for one in (poisoned, lost))
        lost.world = dataclasses.replace(lost.world, failure_rate=rate)
        _play(lost, rounds=1)
        record = _poison(poisoned, [bad])
        after = _state(poisoned)
        for path, value in tree.flatten(poisoned.hub).items():
            assert value.isfinite().all(), f"the hub's {path} is not finite ({topology.name})."
        # A method that sends nothing has nothing that could be dropped.
        sends = any(record.bytes_up.values())
        if sends:
            _assert_dropped(record, [bad])
            kept, now = (_memory(poisoned, state, bad) for state in (before, after))
            _assert_same(kept, now, f"in the memory of client {bad}, which was dropped ({topology.name})")
        expected, found = (_of_clients(one, _state(one), good) for one in (lost, poisoned))
        _assert_close(expected, found, f"without client {bad} ({topology.name})")
        if sends:
            _assert_dropped(_poison(poisoned, good), range(len(SIZES)))
            _assert_same(after, _state(poisoned), f"when all are dropped ({topology.name})")


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
    return _of_clients(simulation, memories, [client])


def _assert_dropped(record: Record, clients: Sequence[int]) -> None:
    names = tuple(f"client {client} (upload rejected)" for client in clients)
    assert record.dropped == names, f"{record.dropped or 'nobody'} was dropped instead of {names}."


def runs_repeat_bit_for_bit(subject: Subject) -> None:
    """Two identical runs in float32, all clients at once, give the same bits."""
    for topology in subject.topologies[:2]:
        layout = _Layout(topology, dtype=torch.float32, lanes=3)
        first, second = (_play(_simulation(subject, layout), rounds=2)[0] for _ in range(2))
        _assert_same(first, second, f"in a second run ({topology.name})")


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
