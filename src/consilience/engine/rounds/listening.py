"""Who hears whom: what clients sent, what of it arrives at the nodes of a graph, and what it weighs there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.engine.rounds.mailbox import Mailbox
from consilience.engine.rounds.told import Told
from consilience.engine.world import World
from consilience.graphs.base import degrees_of, mixing_of
from consilience.transfer import to_device
from consilience.types import Booleans, Floats, State


@dataclass(frozen=True)
class Heard:
    """What the nodes of a graph hear in a round."""

    messages: State
    """[replicas, nodes, ...] the messages, by sender."""
    who: Booleans
    """[replicas, receivers, senders] who heard whom."""
    samples: Floats
    """[replicas, receivers, senders] how many samples each sender has; 0 for one that was not heard."""
    mixing: Floats
    """[replicas, receivers, senders] Metropolis-Hastings weights."""
    sent: list[int]
    """How many messages went over an edge, by replica."""
    received: list[int]
    """How many of these arrived, by replica."""
    mailbox: Mailbox | None

    @property
    def weights(self) -> Floats:
        """[replicas, receivers, senders] shares of the data of those heard; all 0 where nobody was."""
        total = self.samples.sum(-1, keepdims=True)
        return np.asarray(self.samples / np.where(total > 0, total, 1), dtype=np.float64)


def listen(
    world: World, round_number: int, uploads: State, told: Told, mailbox: Mailbox | None, *, flooded: bool
) -> Heard:
    """What the nodes of a graph hear in a round.

    Args:
        world: A world with a graph.
        round_number: The round, counted from 0.
        uploads: What the nodes that take part sent, one row each.
        told: Who they are, and whose upload is lost or unsound.
        mailbox: What nodes that do not wake together hold.
        flooded: Whether messages are passed on until every node has heard every other.
    """
    network = world.network
    replicas, nodes = len(world.replicas), world.population
    place = np.zeros((replicas, nodes), dtype=np.int64)
    went = np.zeros((replicas, nodes, nodes), dtype=np.bool_)  # receiver, sender
    sound = np.zeros((replicas, nodes), dtype=np.bool_)
    takes_part = np.zeros((replicas, nodes), dtype=np.bool_)
    links = np.stack([world.adjacency(replica, round_number) for replica in range(replicas)])
    if flooded:
        links = np.broadcast_to(~np.eye(nodes, dtype=np.bool_), links.shape)
    arrived = told.arrived
    for row, (replica, node) in enumerate(told.jobs):
        place[replica, node] = row
        takes_part[replica, node] = True
        sound[replica, node] = arrived[row]
        if node not in told.failed[replica]:
            went[replica, :, node] = links[replica, :, node]
    seeds = [replica.seed for replica in world.replicas]
    there = np.stack([world.there(replica, round_number) for replica in range(replicas)])
    present = np.stack([network.present(seed, nodes, round_number) for seed in seeds])
    # A node without data has nothing to say, but it listens and follows its neighbours.
    listens = takes_part | ((world.sizes() == 0) & there)
    # A sleeping node finds in its mailbox, when it wakes, what arrived.
    went &= (present if network.asynchronous else listens)[:, :, None]
    came = went & ~np.stack([network.lost(seed, nodes, round_number) for seed in seeds])
    counts = [[int(count) for count in links_used.sum((1, 2))] for links_used in (went, came)]
    heard = came & sound[:, None, :]
    rows_of_nodes = to_device(place, world.device)
    messages = tree.map_leaves(lambda value: value[rows_of_nodes], uploads)
    if network.asynchronous:
        rows = np.flatnonzero(arrived)
        mailbox = mailbox or Mailbox.empty(uploads, replicas, nodes)
        mailbox = mailbox.post(
            tree.index(uploads, to_device(rows, world.device)),
            np.array([told.jobs[row] for row in rows], dtype=np.int64).reshape(-1, 2),
            heard,
            round_number,
        )
        heard = mailbox.usable(round_number, network.staleness) & links & listens[:, :, None]
        messages, sound = mailbox.messages, mailbox.sent >= 0
    own = np.arange(nodes)
    heard[:, own, own] = takes_part & sound
    degrees = [degrees_of(*given) for given in zip(links, world.sizes() > 0, strict=True)]
    sizes: Floats = np.where(heard, world.sizes()[:, None, :], 0.0)
    return Heard(
        messages=messages if sound.all() else blanked(messages, to_device(sound, world.device)),
        who=heard,
        samples=sizes,
        mixing=np.stack([mixing_of(*given) for given in zip(heard, degrees, strict=True)]),
        sent=counts[0],
        received=counts[1],
        mailbox=mailbox,
    )


def blanked(messages: State, present: Tensor) -> State:
    """Messages with zeros for those that were not received: 0 times NaN would still be NaN."""
    return tree.where(present, messages, tree.map_leaves(torch.zeros_like, messages))
