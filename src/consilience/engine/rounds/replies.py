"""Exchanges of replies: every node of a graph answers each of those whom it heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from consilience import tree
from consilience.engine.rounds.cast import Cast
from consilience.engine.rounds.exchange import Exchange, Report, columns, rows_of
from consilience.engine.rounds.listening import Heard
from consilience.engine.rounds.store import Store
from consilience.engine.rounds.told import Told
from consilience.exchange.traffic import Traffic, row_bytes, times
from consilience.types import State

Reply = tuple[int, int, int]
"""A replica, a node of it, and the host whom the node answers."""


def run_replies(one: Exchange, cast: Cast, hub: State, links: Store, heard: Heard | None) -> list[Report]:
    """Carry out an exchange of replies.

    There may be far more of them than nodes, so that those to some hosts are computed and combined at a time.
    What is left behind is reported for each of these parts; the last one has the new hubs.

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
    if heard is None or not replies:
        nothing = tuple(Traffic() for _ in one.world.replicas)
        return [Report(hub, None, None, None, Told((), cast.failed, None), nothing)]
    reports: list[Report] = []
    for some in _by_host(replies, one.world.executor.chunk):
        reports.append(_run_some(one, some, cast, hub, links, heard))
        hub = reports[-1].hub
    return reports


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
    one: Exchange, replies: Sequence[Reply], cast: Cast, hub: State, links: Store, heard: Heard
) -> Report:
    """Carry out the replies to some hosts: all that these get."""
    world, nodes = one.world, one.world.population
    replicas, senders, hosts = columns(replies)
    jobs = tuple((replica, node) for replica, node, _ in replies)
    given = rows_of(heard.messages, world.device, replicas, hosts)
    cohort = world.cohort(jobs, one.round, hosts.tolist())
    outcome = one.work(cohort, given, links, (replicas * nodes + senders) * nodes + hosts)
    told = Told(jobs, cast.failed, outcome)
    lost = [world.network.lost(replica.seed, nodes, one.round) for replica in world.replicas]
    to: dict[int, list[int]] = {}
    went, came = np.zeros((2, len(world.replicas)), dtype=np.int64)
    for row, (replica, node, host) in enumerate(replies):
        delivered = node not in cast.failed[replica]
        arrives = delivered and not lost[replica][host, node]
        went[replica] += delivered
        came[replica] += arrives
        if arrives:
            to.setdefault(replica * nodes + host, []).append(row)
    if to:
        which = np.array(sorted(to), dtype=np.int64)
        rows = [np.array(to[host], dtype=np.int64) for host in which.tolist()]
        flat = tree.reshape_leading(hub, 2, len(world.hub_replicas))
        flat = one.combine_apart(flat, outcome, told, rows, which)
        hub = tree.reshape_leading(flat, 1, *world.hub_shape)
    up_bytes = row_bytes(one.form.travelling(outcome.uploads))
    traffic = tuple(
        Traffic(times(int(out), up_bytes), times(int(into), up_bytes), int(out) if up_bytes else 0)
        for out, into in zip(went, came, strict=True)
    )
    return Report(hub, None, None, outcome, told, traffic)
