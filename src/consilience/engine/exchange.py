"""One exchange of messages: hubs broadcast, clients work, hubs combine what they heard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience import numbers, tree
from consilience.algorithm import Algorithm, Inbox, Phase
from consilience.client import Client, Fold
from consilience.engine.batches import Booleans, Floats
from consilience.engine.cohort import failed_clients, sample_clients
from consilience.engine.executor import Outcome
from consilience.engine.network import Mailbox
from consilience.engine.store import Store
from consilience.engine.traffic import Traffic, row_bytes, times
from consilience.engine.world import World
from consilience.topology import metropolis
from consilience.types import State

Jobs = tuple[tuple[int, int], ...]
"""(replica, client) of every row of a cohort."""

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


def phase_of(algorithm: Algorithm, round_number: int, index: int) -> PhaseOf:
    """How to get a round's exchange of an algorithm once its swept numbers are known."""
    return lambda swept: numbers.join(algorithm, swept["method"]).at(round_number).phases()[index]


def setup_of(algorithm: Algorithm, index: int) -> PhaseOf:
    """The same for an exchange before the first round."""
    return lambda swept: numbers.join(algorithm, swept["method"]).setup()[index]


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
        known = self.phase(tree.index(world.numbers, 0)).known
        down_bytes = {} if world.graph else row_bytes(down, known)
        received = [times(len(clients), down_bytes) for clients in cast.sampled]
        if not jobs:
            traffic = tuple(Traffic(down=count) for count in received)
            return Report(hub, mailbox, None, None, (), traffic, cast.failed, _nobody(world))
        outcome = self._work(down, store, jobs)
        sent = _Sent(outcome, jobs, outcome.arrived.cpu().numpy(), cast.failed)
        up_bytes = row_bytes(outcome.uploads, self.cached)
        heard: Heard | None = None
        if world.graph:
            heard = self._listen(sent, mailbox)
            hub, mailbox = self._combine_on_graph(hub, heard), heard.mailbox
            traffic = tuple(
                Traffic(times(went, up_bytes), times(came, up_bytes), went if up_bytes else 0)
                for went, came in zip(heard.sent, heard.received, strict=True)
            )
        else:
            hub = self._combine_at_servers(hub, sent)
            delivered = [len(sent.delivered(replica)) for replica in range(len(world.replicas))]
            traffic = tuple(
                Traffic(times(came, up_bytes), count, came if up_bytes else 0)
                for came, count in zip(delivered, received, strict=True)
            )
        rejected = tuple(sent.rejected(replica) for replica in range(len(world.replicas)))
        return Report(hub, mailbox, heard, outcome, jobs, traffic, cast.failed, rejected)

    def _populations(self) -> Tensor:
        """[replicas] how many clients have data."""
        counts = [float(len(replica.available)) for replica in self.world.replicas]
        return torch.tensor(counts, dtype=self.world.pool.dtype, device=self.world.device)

    def _broadcast(self, hub: State) -> State:
        """What every hub sends, with the hubs' leading axes."""
        world = self.world
        replicas = torch.from_numpy(world.hub_rows // world.population).to(world.device)
        flat = tree.reshape_leading(hub, len(world.hub_shape), len(replicas))

        def broadcast(swept: State, own: State) -> State:
            return self.phase(swept).broadcast(own)

        sent = world.executor.map(broadcast, (0, 0), world.numbers_of(replicas), flat)
        return tree.reshape_leading(sent, 1, *world.hub_shape)

    def _work(self, down: State, store: Store, jobs: Jobs) -> Outcome:
        """Every client's work; memories of those whose upload is sound are kept."""
        world = self.world
        cohort = world.cohort(jobs, self.round)
        replicas, clients = (torch.tensor(column, device=world.device) for column in zip(*jobs, strict=True))
        received = tree.map_leaves(lambda v: v[replicas, clients] if world.graph else v[replicas], down)
        rows = np.array([replica * world.population + client for replica, client in jobs], dtype=np.int64)
        samples = cohort.column(cohort.samples(), world.pool.dtype)
        decayed = [world.work.lr_decay**self.round] * len(jobs)
        facts = {
            "client": {
                "samples": samples,
                "steps": cohort.column(cohort.steps(), world.pool.dtype),
                "key": cohort.keys(),
                "decay": cohort.column(decayed, world.pool.dtype),
            }
        }

        def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
            swept, fact, message, memory = states
            solver = numbers.join(world.solver, swept["solver"])
            if world.work.lr_decay != 1:
                solver = numbers.replace(solver, {"lr": solver.lr * fact["client"]["decay"]})
            client = Client(
                task=world.task,
                solver=solver,
                samples=fact["client"]["samples"],
                steps=fact["client"]["steps"],
                epochs=world.work.epochs or 0,
                fold=fold,
                key=fact["client"]["key"],
                peer=world.graph,
                clip=world.work.clip,
            )
            return self.phase(swept).local(client, message, memory)

        states = [world.numbers_of(replicas), facts, received, store.load(rows)]
        outcome = world.executor.clients(cohort, work, states)
        keep = outcome.arrived.nonzero().squeeze(1)
        store.save(rows[keep.cpu().numpy()], tree.index(outcome.memories, keep))
        return outcome

    def _combine_at_servers(self, hub: State, sent: _Sent) -> State:
        """Every replica's server combines its cohort's messages."""
        world = self.world
        senders = [sent.rows_of(replica) for replica in range(len(world.replicas))]
        width = max(len(rows) for rows in senders)
        # Cohorts of different sizes are padded with messages that were not received.
        place = torch.tensor([rows + [0] * (width - len(rows)) for rows in senders], device=world.device)
        sizes = np.zeros((len(senders), width))
        for replica, rows in enumerate(senders):
            shards = world.replicas[replica].shards
            sizes[replica, : len(rows)] = [len(shards[sent.jobs[row][1]]) * sent.heard(row) for row in rows]
        messages = _heard(tree.map_leaves(lambda v: v[place], sent.outcome.uploads), sizes > 0, world.device)
        weights = _normalised(sizes)

        def combine(swept: State, old: State, uploads: State, given: State) -> State:
            share = given["share"]
            inbox = Inbox(uploads, share["weights"], share["weights"], None, share["population"])
            return self.phase(swept).combine(old, inbox)

        given = {
            "share": {
                "weights": torch.from_numpy(weights).to(world.device),
                "population": self._populations(),
            }
        }
        new = world.executor.map(combine, (0, 0, 0, 0), world.numbers, hub, messages, given)
        return _keep_where_nothing_was_heard(hub, new, weights.sum(-1) > 0, world.device)

    def _listen(self, sent: _Sent, mailbox: Mailbox | None) -> Heard:
        """Who hears whom in this round."""
        world, network = self.world, self.world.network
        replicas, nodes = len(world.replicas), world.population
        place = torch.zeros(replicas, nodes, dtype=torch.int64, device=world.device)
        went = np.zeros((replicas, nodes, nodes), dtype=np.bool_)  # receiver, sender
        sound = np.zeros((replicas, nodes), dtype=np.bool_)
        takes_part = np.zeros((replicas, nodes), dtype=np.bool_)
        links = np.stack([world.adjacency(replica, self.round) for replica in range(replicas)])
        if self.phase(tree.index(world.numbers, 0)).flooded:
            links = np.broadcast_to(~np.eye(nodes, dtype=np.bool_), links.shape)
        for row, (replica, node) in enumerate(sent.jobs):
            place[replica, node] = row
            takes_part[replica, node] = True
            sound[replica, node] = sent.arrived[row]
            if node not in sent.failed[replica]:
                went[replica, :, node] = links[replica, :, node]
        seeds = [replica.seed for replica in world.replicas]
        there = np.stack([world.there(replica, self.round) for replica in range(replicas)])
        present = np.stack([network.present(seed, nodes, self.round) for seed in seeds])
        # A node without data has nothing to say, but it listens and follows its neighbours.
        listens = takes_part | ((world.sizes() == 0) & there)
        # A sleeping node finds in its mailbox, when it wakes, what arrived.
        went &= (present if network.asynchronous else listens)[:, :, None]
        came = went & ~np.stack([network.lost(seed, nodes, self.round) for seed in seeds])
        counts = [[int(count) for count in links_used.sum((1, 2))] for links_used in (went, came)]
        heard = came & sound[:, None, :]
        messages = tree.map_leaves(lambda value: value[place], sent.outcome.uploads)
        if network.asynchronous:
            rows = [row for row, _ in enumerate(sent.jobs) if sent.arrived[row]]
            mailbox = mailbox or Mailbox.empty(sent.outcome.uploads, replicas, nodes)
            mailbox = mailbox.post(
                tree.index(sent.outcome.uploads, torch.tensor(rows, device=world.device)),
                np.array([sent.jobs[row] for row in rows], dtype=np.int64).reshape(-1, 2),
                heard,
                self.round,
            )
            heard = mailbox.usable(self.round, network.staleness) & links & listens[:, :, None]
            messages, sound = mailbox.messages, mailbox.sent >= 0
        own = np.arange(nodes)
        heard[:, own, own] = takes_part & sound
        sizes: Floats = np.where(heard, world.sizes()[:, None, :], 0.0)
        return Heard(
            messages=_heard(messages, sound, world.device),
            who=heard,
            weights=_normalised(sizes),
            peers=_normalised(sizes * (1 - np.eye(nodes))),
            mixing=np.stack([_mixing(*given) for given in zip(links, heard, world.sizes() > 0, strict=True)]),
            sent=counts[0],
            received=counts[1],
            mailbox=mailbox,
        )

    def _combine_on_graph(self, hub: State, heard: Heard) -> State:
        """Every node combines what it heard."""
        world = self.world
        replicas, nodes = len(world.replicas), world.population
        weights, peers = heard.weights, heard.peers
        given = {
            "share": {
                "weights": torch.from_numpy(weights).to(world.device),
                "peers": torch.from_numpy(peers).to(world.device),
                "mixing": torch.from_numpy(heard.mixing).to(world.device),
                "population": self._populations()[:, None].expand(replicas, nodes),
            }
        }

        def of_replica(swept: State, hubs: State, uploads: State, rows: State) -> State:
            def of_node(old: State, own: State, row: State) -> State:
                share = row["share"]
                inbox = Inbox(
                    uploads, share["weights"], share["peers"], own, share["population"], share["mixing"]
                )
                return self.phase(swept).combine(old, inbox)

            return world.executor.map(of_node, (0, 0, 0), hubs, uploads, rows)

        new = world.executor.map(of_replica, (0, 0, 0, 0), world.numbers, hub, heard.messages, given)
        return _keep_where_nothing_was_heard(hub, new, weights.sum(-1) > 0, world.device)


@dataclass(frozen=True)
class Heard:
    """What the nodes of a graph hear in a round."""

    messages: State
    """[replicas, nodes, ...] by sender."""
    who: Booleans
    """[replicas, receivers, senders]"""
    weights: Floats
    """The same: shares of the data of those heard."""
    peers: Floats
    """The same without the node itself."""
    mixing: Floats
    """The same: Metropolis-Hastings weights."""
    sent: list[int]
    """By replica, messages that went over an edge."""
    received: list[int]
    """Those of them that arrived."""
    mailbox: Mailbox | None


@dataclass(frozen=True)
class _Sent:
    """The uploads of an exchange."""

    outcome: Outcome
    jobs: Jobs
    arrived: Booleans
    failed: tuple[frozenset[int], ...]

    def rows_of(self, replica: int) -> list[int]:
        return [row for row, (index, _) in enumerate(self.jobs) if index == replica]

    def delivered(self, replica: int) -> list[int]:
        """The rows of messages that were not lost, sound or not."""
        return [row for row in self.rows_of(replica) if self.jobs[row][1] not in self.failed[replica]]

    def heard(self, row: int) -> bool:
        """Whether a server hears a message."""
        replica, client = self.jobs[row]
        return bool(self.arrived[row]) and client not in self.failed[replica]

    def rejected(self, replica: int) -> frozenset[int]:
        return frozenset(self.jobs[row][1] for row in self.rows_of(replica) if not self.arrived[row])


def _heard(messages: State, present: Booleans, device: torch.device) -> State:
    """Messages with zeros for those that were not received: 0 times NaN would still be NaN."""
    if present.all():
        return messages
    blank = tree.map_leaves(torch.zeros_like, messages)
    return _choose(torch.from_numpy(present).to(device), messages, blank)


def _mixing(links: Booleans, heard: Booleans, speaks: Booleans) -> Floats:
    """[receivers, senders] Metropolis-Hastings weights; those of unheard neighbours are the node's own.

    Args:
        links: [receivers, senders] the neighbours.
        heard: The same, who was heard, a node itself among them.
        speaks: [nodes] who has data; the others count for no degree.

    A node that has nothing to say itself follows all whom it hears alike.
    """
    own = np.eye(len(links), dtype=np.bool_)
    others = np.where(heard & ~own, metropolis(links & speaks[:, None] & speaks), 0.0)
    mixing = others + own * (1 - others.sum(-1, keepdims=True))
    alike = heard / np.maximum(heard.sum(-1, keepdims=True), 1)
    chosen: Floats = np.where(heard.diagonal()[:, None], mixing, alike)
    return chosen


def _normalised(sizes: Floats) -> Floats:
    total = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(total > 0, total, 1), dtype=np.float64)


def _keep_where_nothing_was_heard(old: State, new: State, heard: Booleans, device: torch.device) -> State:
    return new if heard.all() else _choose(torch.from_numpy(heard).to(device), new, old)


def _choose(mask: Tensor, left: State, right: State) -> State:
    """`left` where a mask over the leading axes holds, else `right`."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(*mask.shape, *[1] * (a.ndim - mask.ndim)), a, b)

    return {
        group: {name: choose(v, right[group][name]) for name, v in p.items()} for group, p in left.items()
    }
