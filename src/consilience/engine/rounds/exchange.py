"""One exchange of messages: hubs broadcast, clients work, hubs combine what they heard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.algorithm import Algorithm, Inbox, Phase
from consilience.client import Client, Fold
from consilience.engine.executors.base import Outcome
from consilience.engine.rounds.listening import Heard, Jobs, Sent, blanked, listen, normalised
from consilience.engine.rounds.mailbox import Mailbox
from consilience.engine.rounds.store import Store
from consilience.engine.world import World
from consilience.exchange.cohort import Cohort, failed_clients, sample_clients
from consilience.exchange.traffic import Traffic, row_bytes, times
from consilience.types import Booleans, IntArray, State

PhaseOf = Callable[[State], Phase]
"""The exchange of the algorithm whose swept numbers are in a State."""


@dataclass(frozen=True)
class Report:
    """What an exchange left behind, beside the new hubs."""

    hub: State
    mailbox: Mailbox | None
    """Of nodes that do not wake together."""
    heard: Heard | None
    """What the nodes of a graph heard."""
    outcome: Outcome | None
    """None where no client was left to work."""
    jobs: Jobs
    traffic: tuple[Traffic, ...]
    """By replica."""
    failed: tuple[frozenset[int], ...]
    """By replica, the clients whose upload was lost."""
    rejected: tuple[frozenset[int], ...]
    """By replica, the clients whose upload was not finite or not well-formed."""

    @property
    def has_models(self) -> bool:
        """Whether clients sent models."""
        return self.outcome is not None and "params" in self.outcome.uploads


def phase_of(algorithm: Algorithm, round_number: int, index: int) -> PhaseOf:
    """How to get a round's exchange of an algorithm once its swept numbers are known."""
    return lambda swept: sweeping.join(algorithm, swept["method"]).at(round_number).phases()[index]


def setup_of(algorithm: Algorithm, index: int) -> PhaseOf:
    """The same for an exchange before the first round."""
    return lambda swept: sweeping.join(algorithm, swept["method"]).setup()[index]


@dataclass(frozen=True)
class Cast:
    """Who takes part in an exchange, by replica."""

    sampled: tuple[tuple[int, ...], ...]
    failed: tuple[frozenset[int], ...]
    """Those of them whose upload is lost."""


def everyone(world: World) -> Cast:
    """All clients that have data."""
    return Cast(tuple(tuple(r.available.tolist()) for r in world.replicas), _nobody(world))


def cohort_of(world: World, round_number: int) -> Cast:
    """The clients of a round, and who of them fails."""
    sampled = [
        sample_clients(
            replica.seed,
            round_number,
            replica.available[world.there(index, round_number)[replica.available]],
            world.participation,
        )
        for index, replica in enumerate(world.replicas)
    ]
    failed = (
        failed_clients(replica.seed, round_number, clients, world.failure_rate)
        for replica, clients in zip(world.replicas, sampled, strict=True)
    )
    return Cast(tuple(tuple(clients.tolist()) for clients in sampled), tuple(failed))


def _columns(rows: Sequence[tuple[int, ...]]) -> tuple[IntArray, ...]:
    return tuple(np.array(rows, dtype=np.int64).T.copy())


def _rows(stacked: State, device: torch.device, *places: IntArray) -> State:
    """Some rows of the leading axes, as many of these as there are columns of places."""
    chosen = tuple(torch.from_numpy(column).to(device) for column in places)
    return tree.map_leaves(lambda value: value[chosen], stacked)


def _no_traffic(world: World) -> tuple[Traffic, ...]:
    return tuple(Traffic() for _ in world.replicas)


def _nobody(world: World) -> tuple[frozenset[int], ...]:
    return tuple(frozenset() for _ in world.replicas)


@dataclass(frozen=True)
class Exchange:
    """One exchange of one algorithm in a world."""

    world: World
    phase: PhaseOf
    cached: frozenset[str]
    """Groups of the upload that are not sent again."""
    personal: bool
    """Whether a client's work counts for itself, even if its upload is lost."""
    round: int
    """Keys all randomness."""

    def run(self, cast: Cast, hub: State, store: Store, mailbox: Mailbox | None = None) -> Report:
        """Carry it out.

        Args:
            cast: Who takes part.
            hub: [replicas, ...] at servers, [replicas, nodes, ...] on a graph.
            store: The clients' memories; those whose upload is sound are renewed.
            mailbox: What nodes that do not wake together hold.
        """
        world = self.world
        # A server never hears a failed client, so that work need not be done; but a failed peer hears
        # itself, and a personal model is trained for its own sake.
        jobs = tuple(
            (index, client)
            for index, clients in enumerate(cast.sampled)
            for client in clients
            if world.graph or self.personal or client not in cast.failed[index]
        )
        down = self._broadcast(hub)
        phase = self._any_phase()
        down_bytes = {} if world.graph else row_bytes(down, phase.known)
        received = [times(len(clients), down_bytes) for clients in cast.sampled]
        if not jobs:
            traffic = tuple(Traffic(down=count) for count in received)
            return Report(hub, mailbox, None, None, (), traffic, cast.failed, _nobody(world))
        replicas, clients = _columns(jobs)
        given = _rows(down, world.device, *((replicas, clients) if world.graph else (replicas,)))
        cohort = world.cohort(jobs, self.round)
        outcome = self._work(cohort, given, store, replicas * world.population + clients)
        sent = Sent(outcome, jobs, outcome.arrived.cpu().numpy(), cast.failed)
        up_bytes = row_bytes(outcome.uploads, self.cached)
        heard: Heard | None = None
        if world.graph:
            heard = listen(world, self.round, sent, mailbox, flooded=phase.flooded)
            hub, mailbox = self._combine_on_graph(hub, heard), heard.mailbox
            traffic = tuple(
                Traffic(times(went, up_bytes), times(came, up_bytes), went if up_bytes else 0)
                for went, came in zip(heard.sent, heard.received, strict=True)
            )
        else:
            everywhere = range(len(world.replicas))
            hub = self._combine_apart(hub, sent, [sent.heard(replica) for replica in everywhere])
            delivered = [len(sent.delivered(replica)) for replica in everywhere]
            traffic = tuple(
                Traffic(times(came, up_bytes), count, came if up_bytes else 0)
                for came, count in zip(delivered, received, strict=True)
            )
        rejected = tuple(sent.rejected(replica) for replica in range(len(world.replicas)))
        return Report(hub, mailbox, heard, outcome, jobs, traffic, cast.failed, rejected)

    def run_replies(self, cast: Cast, hub: State, links: Store, heard: Heard | None) -> Report:
        """Carry out an exchange of replies: every node answers each of those whom it heard.

        Args:
            cast: Who takes part.
            hub: [replicas, nodes, ...].
            links: What every node remembers of every other; renewed where its reply is sound.
            heard: What nodes heard in the exchange before; None: nothing.
        """
        world, nodes = self.world, self.world.population
        replies = [
            (replica, node, host)
            for replica, clients in enumerate(cast.sampled)
            for node in clients
            for host in np.flatnonzero(heard.who[replica, node] if heard else ()).tolist()
            if host != node
        ]
        if heard is None or not replies:
            return Report(hub, None, None, None, (), _no_traffic(world), cast.failed, _nobody(world))
        replicas, senders, hosts = _columns(replies)
        jobs = tuple((replica, node) for replica, node, _ in replies)
        given = _rows(heard.messages, world.device, replicas, hosts)
        cohort = world.cohort(jobs, self.round, hosts.tolist())
        outcome = self._work(cohort, given, links, (replicas * nodes + senders) * nodes + hosts)
        sent = Sent(outcome, jobs, outcome.arrived.cpu().numpy(), cast.failed)
        lost = [world.network.lost(replica.seed, nodes, self.round) for replica in world.replicas]
        to: list[list[int]] = [[] for _ in range(len(world.replicas) * nodes)]
        went, came = np.zeros((2, len(world.replicas)), dtype=np.int64)
        for row, (replica, node, host) in enumerate(replies):
            delivered = node not in cast.failed[replica]
            arrives = delivered and not lost[replica][host, node]
            went[replica] += delivered
            came[replica] += arrives
            if arrives and sent.arrived[row]:
                to[replica * nodes + host].append(row)
        flat = tree.reshape_leading(hub, 2, len(to))
        hub = tree.reshape_leading(self._combine_apart(flat, sent, to), 1, *world.hub_shape)
        up_bytes = row_bytes(outcome.uploads, self.cached)
        traffic = tuple(
            Traffic(times(int(out), up_bytes), times(int(into), up_bytes), int(out) if up_bytes else 0)
            for out, into in zip(went, came, strict=True)
        )
        rejected = tuple(sent.rejected(replica) for replica in range(len(world.replicas)))
        return Report(hub, None, None, outcome, jobs, traffic, cast.failed, rejected)

    def _any_phase(self) -> Phase:
        """The exchange of some replica; what is the same in all can be asked of it."""
        return self.phase(tree.index(self.world.numbers, 0))

    def _broadcast(self, hub: State) -> State:
        """What every hub sends, with the hubs' leading axes."""
        world = self.world
        replicas = torch.from_numpy(world.hub_rows // world.population).to(world.device)
        flat = tree.reshape_leading(hub, len(world.hub_shape), len(replicas))

        def broadcast(swept: State, own: State) -> State:
            return self.phase(swept).broadcast(own)

        sent = world.executor.map(broadcast, (0, 0), world.numbers_of(replicas), flat)
        return tree.reshape_leading(sent, 1, *world.hub_shape)

    def _work(self, cohort: Cohort, given: State, store: Store, rows: IntArray) -> Outcome:
        """Every job's work; memories (some rows of the store) are kept where the upload is sound.

        Args:
            cohort: The jobs.
            given: What each of them starts from, stacked.
            store: Their memories.
            rows: [jobs] where these are.
        """
        world = self.world
        replicas = torch.tensor([job.replica for job in cohort.jobs], device=world.device)
        samples = cohort.column(cohort.samples(), world.pool.dtype)
        decayed = [world.work.lr_decay**self.round] * len(cohort.jobs)
        common = cohort.common_keys()
        one_seed = len({job.seed for job in cohort.jobs}) == 1
        facts = {
            "client": {
                "samples": samples,
                "steps": cohort.column(cohort.steps(), world.pool.dtype),
                "key": cohort.keys(),
                "common_key": common,
                "decay": cohort.column(decayed, world.pool.dtype),
            }
        }

        def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
            swept, fact, message, memory = states
            solver = sweeping.join(world.solver, swept["solver"])
            if world.work.lr_decay != 1:
                solver = sweeping.replace(solver, {"lr": solver.lr * fact["client"]["decay"]})
            client = Client(
                task=world.task,
                solver=solver,
                samples=fact["client"]["samples"],
                steps=fact["client"]["steps"],
                epochs=world.work.epochs or 0,
                fold=fold,
                key=fact["client"]["key"],
                # With one seed it has no axis of jobs, and what is drawn from it is there once for all.
                common_key=common[0] if one_seed else fact["client"]["common_key"],
                peer=world.graph,
                clip=world.work.clip,
            )
            return self.phase(swept).local(client, message, memory)

        states = [world.numbers_of(replicas), facts, given, store.load(rows)]
        outcome = world.executor.clients(cohort, work, states)
        keep = outcome.arrived.nonzero().squeeze(1)
        store.save(rows[keep.cpu().numpy()], tree.index(outcome.memories, keep))
        return outcome

    def _combine_apart(self, hub: State, sent: Sent, heard: Sequence[Sequence[int]]) -> State:
        """Hubs [hubs, ...] combine messages, each of its own senders.

        Args:
            hub: Of all replicas, one after the other, as many of each.
            sent: All messages.
            heard: The rows of those that each hub hears.
        """
        world = self.world
        width = max(1, *(len(rows) for rows in heard))
        # Numbers of messages that differ are padded with some that were not received.
        place = torch.tensor([[*rows, *[0] * (width - len(rows))] for rows in heard], device=world.device)
        sizes = np.zeros((len(heard), width))
        for number, rows in enumerate(heard):
            jobs = [sent.jobs[row] for row in rows]
            sizes[number, : len(rows)] = [len(world.replicas[r].shards[client]) for r, client in jobs]
        messages = blanked(tree.map_leaves(lambda v: v[place], sent.outcome.uploads), sizes > 0, world.device)
        weights = normalised(sizes)
        replicas = torch.arange(len(heard), device=world.device) // (len(heard) // len(world.replicas))

        def combine(swept: State, old: State, uploads: State, given: State) -> State:
            share = given["share"]
            inbox = Inbox(uploads, share["weights"], share["weights"], None, share["population"])
            return self.phase(swept).combine(old, inbox)

        given = {
            "share": {
                "weights": torch.from_numpy(weights).to(world.device),
                "population": _populations(world)[replicas],
            }
        }
        new = world.executor.map(combine, (0, 0, 0, 0), world.numbers_of(replicas), hub, messages, given)
        return _keep_where_nothing_was_heard(hub, new, weights.sum(-1) > 0, world.device)

    def _combine_on_graph(self, hub: State, heard: Heard) -> State:
        """Every node combines what it heard."""

        def combine(swept: State, old: State, inbox: Inbox) -> State:
            return self.phase(swept).combine(old, inbox)

        new = at_nodes(self.world, combine, hub, heard)
        return _keep_where_nothing_was_heard(hub, new, heard.weights.sum(-1) > 0, self.world.device)


def at_nodes(
    world: World, function: Callable[[State, State, Inbox], State], hub: State, heard: Heard
) -> State:
    """[replicas, nodes, ...] a function of the swept numbers, a node's state and its inbox, at every node."""
    given = {
        "share": {
            "weights": torch.from_numpy(heard.weights).to(world.device),
            "peers": torch.from_numpy(heard.peers).to(world.device),
            "mixing": torch.from_numpy(heard.mixing).to(world.device),
            "population": _populations(world)[:, None].expand(world.hub_shape),
        }
    }

    def of_replica(swept: State, hubs: State, uploads: State, rows: State) -> State:
        def of_node(old: State, own: State, row: State) -> State:
            share = row["share"]
            inbox = Inbox(
                uploads, share["weights"], share["peers"], own, share["population"], share["mixing"]
            )
            return function(swept, old, inbox)

        return world.executor.map(of_node, (0, 0, 0), hubs, uploads, rows)

    return world.executor.map(of_replica, (0, 0, 0, 0), world.numbers, hub, heard.messages, given)


def _populations(world: World) -> Tensor:
    """[replicas] how many clients have data."""
    counts = [float(len(replica.available)) for replica in world.replicas]
    return torch.tensor(counts, dtype=world.pool.dtype, device=world.device)


def _keep_where_nothing_was_heard(old: State, new: State, heard: Booleans, device: torch.device) -> State:
    return new if heard.all() else tree.where(torch.from_numpy(heard).to(device), new, old)
