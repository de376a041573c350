"""Exchanges of replies: every node of a graph answers each of those whom it heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.engine.executors.base import Outcome
from consilience.engine.rounds.cast import Cast
from consilience.engine.rounds.exchange import Exchange, Report, columns, rows_of
from consilience.engine.rounds.listening import Heard
from consilience.engine.rounds.store import Store
from consilience.engine.rounds.told import Told
from consilience.exchange.traffic import Traffic, row_bytes, times
from consilience.types import State

Reply = tuple[int, int, int]
"""A replica, a node of it, and the host whom the node answers."""


def run_replies(one: Exchange, cast: Cast, hub: State, links: Store, heard: Heard | None) -> Report:
    """Carry out an exchange of replies, and return what it left behind.

    There may be far more of them than nodes, so that those to some hosts are computed and combined at a time.

    Args:
        one: The exchange.
        cast: Who takes part.
        hub: [replicas, nodes, ...].
        links: What every node remembers of every other; renewed where its reply is sound.
        heard: What nodes heard in the exchange before; None: nothing.
    """
    replies = [
        (replica, node, host)
        for replica, clients in enumerate(cast.sampled)
        for node in clients
        for host in np.flatnonzero(heard.who[replica, node] if heard else ()).tolist()
        if host != node
    ]
    traffic = tuple(Traffic() for _ in one.world.replicas)
    if heard is None or not replies:
        return Report(hub, None, None, {}, Told((), cast.failed, None), traffic)
    order: list[Reply] = []
    arrived: list[Tensor] = []
    tallies: list[dict[str, Tensor]] = []
    for some in _by_host(replies, one.world.executor.chunk):
        hub, found = _run_some(one, some, cast, hub, links, heard, traffic)
        order += some
        arrived.append(found.arrived)
        tallies.append(found.tally)
    tally = {name: torch.cat([own[name] for own in tallies]) for name in tallies[0]}
    jobs = tuple((replica, node) for replica, node, _ in order)
    told = Told(jobs, cast.failed, Outcome({}, {}, torch.cat(arrived), tally))
    return Report(hub, None, None, {}, told, traffic)


def _by_host(replies: Sequence[Reply], most: int) -> Iterator[Sequence[Reply]]:
    """All replies at once if they are few; else parts with all that go to some hosts.

    A part has no more than `most` unless they go to one host.
    """
    if len(replies) <= most:
        yield replies
        return
    part: list[Reply] = []
    for _, group in groupby(sorted(replies, key=_host_of), key=_host_of):
        own = list(group)
        if part and len(part) + len(own) > most:
            yield part
            part = []
        part += own
    yield part


def _host_of(reply: Reply) -> tuple[int, int]:
    return reply[0], reply[2]


def _run_some(
    one: Exchange,
    replies: Sequence[Reply],
    cast: Cast,
    hub: State,
    links: Store,
    heard: Heard,
    traffic: tuple[Traffic, ...],
) -> tuple[State, Outcome]:
    """The hubs after the replies to some hosts, all that these get, and what the nodes' work tells.

    Their bytes are added to the traffic.
    """
    world, nodes = one.world, one.world.population
    replicas, senders, hosts = columns(replies)
    jobs = tuple((replica, node) for replica, node, _ in replies)
    given = rows_of(heard.messages, world.device, replicas, hosts)
    cohort = world.cohort(jobs, one.round, hosts.tolist())
    outcome = one.work(cohort, given, links, (replicas * nodes + senders) * nodes + hosts)
    lost = [world.network.lost(replica.seed, nodes, one.round) for replica in world.replicas]
    up_bytes = row_bytes(one.form.travelling(outcome.uploads))
    to: dict[int, list[int]] = {}
    for row, (replica, node, host) in enumerate(replies):
        delivered = node not in cast.failed[replica]
        arrives = delivered and not lost[replica][host, node]
        traffic[replica].add(
            Traffic(times(delivered, up_bytes), times(arrives, up_bytes), delivered if up_bytes else 0)
        )
        if arrives:
            to.setdefault(replica * nodes + host, []).append(row)
    if to:
        which = np.array(sorted(to), dtype=np.int64)
        rows = [np.array(to[host], dtype=np.int64) for host in which.tolist()]
        flat = tree.reshape_leading(hub, 2, len(world.hub_replicas))
        flat = one.combine_apart(flat, outcome, Told(jobs, cast.failed, outcome), rows, which)
        hub = tree.reshape_leading(flat, 1, *world.hub_shape)
    return hub, Outcome({}, {}, outcome.arrived, outcome.tally)  # messages and memories may go
