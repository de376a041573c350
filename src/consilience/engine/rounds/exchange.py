"""One exchange of messages: hubs broadcast, clients work, hubs combine what they heard.

A hub is a server, or a node of a graph. A replica is one of the federations that are simulated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.algorithm import Algorithm, Inbox, Phase
from consilience.client import Fold
from consilience.engine.executors.base import Errand, Outcome, one_by_one
from consilience.engine.rounds.cast import Cast
from consilience.engine.rounds.listening import Heard, blanked, listen
from consilience.engine.rounds.mailbox import Mailbox
from consilience.engine.rounds.store import Store
from consilience.engine.rounds.told import Jobs, Told
from consilience.engine.world import World
from consilience.exchange.address import Address
from consilience.exchange.cohort import Cohort
from consilience.exchange.device import FACTS, client_of, facts_of
from consilience.exchange.inbox import inbox_of
from consilience.exchange.traffic import Traffic, row_bytes, times
from consilience.transfer import to_device
from consilience.types import Booleans, IntArray, State


@dataclass(frozen=True)
class Report:
    """What an exchange left behind, the new hubs among it."""

    hub: State
    mailbox: Mailbox | None
    """What nodes that do not wake together hold."""
    heard: Heard | None
    """What the nodes of a graph heard."""
    uploads: State
    """What the nodes of a graph sent, a row a job."""
    told: Told
    """What the clients' work told the host."""
    traffic: tuple[Traffic, ...]
    """The bytes and messages, by replica."""

    @property
    def has_models(self) -> bool:
        """Whether the nodes of a graph sent models."""
        return "params" in self.uploads


def columns(rows: Sequence[tuple[int, ...]]) -> tuple[IntArray, ...]:
    """The columns of some rows of numbers."""
    return tuple(np.array(rows, dtype=np.int64).T.copy())


def rows_of(stacked: State, device: torch.device, *places: IntArray) -> State:
    """Some rows of stacked tensors, by as many leading axes as there are columns of places."""
    if all((column == column[0]).all() for column in places):  # a server's clients: the same for all
        first, count = tuple(int(column[0]) for column in places), len(places[0])
        return tree.map_leaves(lambda value: value[first].expand(count, *value.shape[len(first) :]), stacked)
    chosen = tuple(to_device(column, device) for column in places)
    return tree.map_leaves(lambda value: value[chosen], stacked)


def arranged(uploads: State, place: IntArray, device: torch.device) -> State:
    """The uploads in rows of a table; without a copy where they lie in this order already."""
    if (place.ravel() == np.arange(place.size)).all():
        return tree.reshape_leading(tree.index(uploads, slice(place.size)), 1, *place.shape)
    rows = to_device(place, device)
    return tree.map_leaves(lambda value: value[rows], uploads)


def renewed(known: State, outcome: Outcome) -> State:
    """The memories of all jobs: new where the upload is sound, else as they were."""
    new = outcome.memories
    if not known:
        return new

    def before(group: str, name: str, like: Tensor) -> Tensor:
        value = known[group][name]
        return value if value.shape == like.shape else torch.zeros_like(like)  # it would not fit the others

    old = {group: {n: before(group, n, v) for n, v in params.items()} for group, params in new.items()}
    return tree.where(outcome.arrived, new, old)


@dataclass(frozen=True)
class Exchange:
    """One exchange of one algorithm in a world."""

    world: World
    algorithm: Algorithm
    """The algorithm, with holes (`sweeping.Hole`) where variants differ."""
    address: Address

    @property
    def round(self) -> int:
        """The round of the exchange."""
        return self.address.round

    def key(self, kind: str) -> Hashable:
        """What tells a part of this exchange from all others that do other things, if that can be told."""
        in_force = self.world.name_of(self.algorithm, None if self.address.setup else self.round)
        return in_force and (kind, in_force, self.address.index, self.address.setup)

    @cached_property
    def form(self) -> Phase:
        """The exchange with holes for swept numbers: what it says about messages is the same for all."""
        return self.address.phase(self.algorithm)

    def phase(self, swept: State) -> Phase:
        """The exchange of the variant whose swept numbers are in a State."""
        return self.address.phase(sweeping.join(self.algorithm, swept["method"]))

    def jobs(self, cast: Cast) -> Jobs:
        """Who of those who take part has to work."""
        # A server never hears a failed client, so that work need not be done; but a failed peer hears
        # itself, and a personal model is trained for its own sake.
        everybody = self.world.graph or self.algorithm.evaluated() == "client"
        return tuple(
            (index, client)
            for index, clients in enumerate(cast.sampled)
            for client in clients
            if everybody or client not in cast.failed[index]
        )

    def run(
        self,
        cast: Cast,
        hub: State,
        store: Store,
        mailbox: Mailbox | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Report:
        """Carry out the exchange, and return what it left behind.

        Args:
            cast: Who takes part.
            hub: [replicas, ...] at servers, [replicas, nodes, ...] on a graph.
            store: The clients' memories; those whose upload is sound are renewed.
            mailbox: What nodes that do not wake together hold.
            meanwhile: What the host may do before it has to wait for a GPU.
        """
        world = self.world
        jobs = self.jobs(cast)
        down = self.broadcast(hub)
        down_bytes = {} if world.graph else row_bytes(tree.without(down, self.form.known))
        received = [times(len(clients), down_bytes) for clients in cast.sampled]
        if not jobs:
            traffic = tuple(Traffic(down=count) for count in received)
            return Report(hub, mailbox, None, {}, Told((), cast.failed, None), traffic)
        replicas, clients = columns(jobs)
        given = rows_of(down, world.device, *((replicas, clients) if world.graph else (replicas,)))
        cohort = world.cohort(jobs, self.round)
        outcome = self.work(cohort, given, store, replicas * world.population + clients)
        told = Told(jobs, cast.failed, outcome)
        up_bytes = row_bytes(self.form.travelling(outcome.uploads))
        meanwhile()
        if world.graph:
            heard = listen(world, self.round, outcome.uploads, told, mailbox, flooded=self.form.flooded)
            hub = self._combine_on_graph(hub, heard)
            traffic = tuple(
                Traffic(times(went, up_bytes), times(came, up_bytes), went if up_bytes else 0)
                for went, came in zip(heard.sent, heard.received, strict=True)
            )
            return Report(hub, heard.mailbox, heard, outcome.uploads, told, traffic)
        delivered = [told.delivered(replica) for replica in range(len(world.replicas))]
        hub = self.combine_apart(hub, outcome, told, delivered)
        traffic = tuple(
            Traffic(times(len(came), up_bytes), count, len(came) if up_bytes else 0)
            for came, count in zip(delivered, received, strict=True)
        )
        return Report(hub, mailbox, None, {}, told, traffic)

    def broadcast(self, hub: State) -> State:
        """What every hub sends, with the hubs' leading axes."""
        world = self.world
        flat = tree.reshape_leading(hub, len(world.hub_shape), len(world.hub_replicas))

        def broadcast(swept: State, own: State) -> State:
            return self.phase(swept).broadcast(own)

        key = self.key("broadcast")
        sent = world.executor.map(broadcast, (0, 0), world.hub_numbers, flat, key=key)
        return tree.reshape_leading(sent, 1, *world.hub_shape)

    def work(self, cohort: Cohort, given: State, store: Store, rows: IntArray) -> Outcome:
        """The outcome of every job's work; memories (rows of the store) are kept where the upload is sound.

        Args:
            cohort: The jobs.
            given: What each of them starts from, stacked.
            store: Their memories.
            rows: [jobs] where these are.
        """
        world = self.world
        replicas = np.array([job.replica for job in cohort.jobs], dtype=np.int64)
        facts = facts_of(cohort, world.pool.dtype)
        # Where all have one seed it is there once for all, and so is what is drawn from it.
        one_seed = len({job.seed for job in cohort.jobs}) == 1
        common = {FACTS: {"common_key": facts[FACTS]["common_key"][0]}} if one_seed else {}
        known = world.executor.with_room(partial(store.load, rows))
        lasting = known and not self.algorithm.reshapes()
        outcome = world.executor.clients(
            cohort,
            replace(self.errand(), marks=store.marks(rows) if lasting else ()),
            [rows_of(world.numbers, world.device, replicas), facts, given, known],
            shared=[common],
        )
        world.executor.with_room(lambda: store.save(rows, renewed(known, outcome), outcome.marks))
        return outcome

    def errand(self) -> Errand:
        """What clients do, from swept numbers, facts, a message, a memory and what all have in common."""
        world = self.world

        def work(algorithm: Algorithm, fold: Fold, states: Sequence[State]) -> tuple[State, State]:
            swept, own, message, memory, common = states
            solver = sweeping.join(world.solver, swept["solver"])
            client = client_of(world.task, solver, world.work, own, fold, peer=world.graph)
            if common:
                client = replace(client, common_key=common[FACTS]["common_key"])
            phase = self.address.phase(sweeping.join(algorithm, swept["method"]))
            return phase.local(client, message, memory)

        return Errand(
            partial(work, self.algorithm),
            partial(work, self.algorithm.quick()),
            self.key("local"),
            self.address,
            frozenset({0} if world.graph else {0, 2}),  # a server says the same to all
            remembered=3,
        )

    def combine_apart(
        self,
        hub: State,
        outcome: Outcome,
        told: Told,
        heard: Sequence[IntArray],
        which: IntArray | None = None,
    ) -> State:
        """The hubs [hubs, ...] after they combined messages, each of its own senders.

        Args:
            hub: The hubs of all replicas, one after the other, as many of each.
            outcome: All messages, and which of them are sound.
            told: Who sent them.
            heard: The rows of those that come to each hub.
            which: The hubs that these are; None: all. The others stay as they are.
        """
        world = self.world
        if which is not None and len(which) < len(world.hub_replicas):
            chosen = to_device(which, world.device)
            new = self._combined(tree.index(hub, chosen), outcome, told, heard, chosen)
            return tree.with_rows(hub, chosen, new)
        return self._combined(hub, outcome, told, heard, slice(None))

    def _combined(
        self,
        hub: State,
        outcome: Outcome,
        told: Told,
        heard: Sequence[IntArray],
        which: Tensor | slice,
    ) -> State:
        """What `combine_apart` gives for the hubs that are given; `which` says where among all they are."""
        world = self.world
        uploads = tree.without(outcome.uploads, self.form.private)
        large = tree.nbytes(uploads) > world.executor.copied
        if large:  # to copy them takes longer than to wait and see who is sound
            heard = [rows[told.arrived[rows]] for rows in heard]
        width = max(1, *(len(rows) for rows in heard))
        # Numbers of messages that differ are padded with some that were not received.
        place = np.zeros((len(heard), width), dtype=np.int64)
        sizes = np.zeros((len(heard), width))
        for number, rows in enumerate(heard):
            place[number, : len(rows)] = rows
            sizes[number, : len(rows)] = world.sizes()[told.replicas[rows], told.clients[rows]]
        blank = not large or not sizes.all()

        def combine(swept: State, old: State, given: State, messages: State) -> State:
            facts = given["facts"]
            samples = facts["samples"] * facts["sound"]
            inbox = inbox_of(
                blanked(messages, samples > 0) if blank else messages, samples, facts["population"]
            )
            phase = self.phase(swept)
            if phase.ordinary:  # what is new may have another form
                return phase.combine(old, inbox) if bool(samples.any()) else old
            return tree.where(samples.sum() > 0, phase.combine(old, inbox), old)  # nothing heard, no change

        sound = {"facts": {"sound": outcome.arrived}}
        given = {
            "facts": {
                "samples": to_device(sizes, world.device),
                "sound": arranged(sound, place, world.device)["facts"]["sound"],
                "population": world.hub_populations[which],
            }
        }
        key = self.key(f"combine, {blank=}")
        messages = arranged(uploads, place, world.device)
        given_to = (tree.index(world.hub_numbers, which), hub, given, messages)
        if self.form.ordinary:
            return one_by_one(combine, (0, 0, 0, 0), *given_to)
        return world.executor.map(combine, (0, 0, 0, 0), *given_to, key=key)

    def _combine_on_graph(self, hub: State, heard: Heard) -> State:
        """The nodes' hubs after they combined what they heard."""

        def combine(swept: State, old: State, inbox: Inbox) -> State:
            return self.phase(swept).combine(old, inbox)

        new = at_nodes(self.world, combine, hub, heard, self.form.private, self.key("combine"))
        return _keep_where_nothing_was_heard(hub, new, heard.samples.sum(-1) > 0, self.world.device)


def at_nodes(
    world: World,
    function: Callable[[State, State, Inbox], State],
    hub: State,
    heard: Heard,
    private: frozenset[str] = frozenset(),
    key: Hashable = None,
) -> State:
    """What a function gives at every node, [replicas, nodes, ...].

    Args:
        world: The setting, with a graph.
        function: It takes swept numbers, a node's state and the node's inbox.
        hub: The nodes' states, [replicas, nodes, ...].
        heard: What they heard.
        private: Groups that only their senders see.
        key: What tells the function from others.
    """
    nodes = world.population
    given = {
        "facts": {
            "samples": to_device(heard.samples, world.device),
            "itself": torch.eye(nodes, device=world.device).expand(*world.hub_shape, nodes),
            "mixing": to_device(heard.mixing, world.device),
            "population": world.populations[:, None].expand(world.hub_shape),
        }
    }

    def of_replica(swept: State, hubs: State, uploads: State, rows: State) -> State:
        messages = tree.without(uploads, private)

        def of_node(old: State, own: State, row: State) -> State:
            facts = row["facts"]
            inbox = inbox_of(
                messages,
                facts["samples"],
                facts["population"],
                own=own,
                itself=facts["itself"],
                mixing=facts["mixing"],
            )
            return function(swept, old, inbox)

        return world.executor.map(of_node, (0, 0, 0), hubs, uploads, rows)

    return world.executor.map(of_replica, (0, 0, 0, 0), world.numbers, hub, heard.messages, given, key=key)


def _keep_where_nothing_was_heard(old: State, new: State, heard: Booleans, device: torch.device) -> State:
    return new if heard.all() else tree.where(to_device(heard, device), new, old)
