"""What the messages of an exchange look like, found by a dry run and not from messages themselves."""

from __future__ import annotations

from typing import NamedTuple

import torch

from consilience.algorithm import Algorithm, Phase
from consilience.client import Client
from consilience.exchange.cohort import LocalWork
from consilience.exchange.device import FACTS, client_of, idle
from consilience.learning.solvers import Solver
from consilience.learning.task import Task
from consilience.tree import Schema
from consilience.types import State


class Exchanged(NamedTuple):
    """The schemas of one exchange."""

    download: Schema
    """What a hub broadcasts."""
    upload: Schema
    """What a client gives: all groups that are combined, and its private ones."""
    memory: Schema
    """What the client remembers afterwards."""

    def message(self, phase: Phase) -> Schema:
        """What a hub combines of an upload, once it was received: all but the private groups."""
        return self.upload.without(phase.private)


def schemas_of(
    algorithm: Algorithm,
    task: Task,
    solver: Solver,
    work: LocalWork,
    model: State,
    *,
    peer: bool,
    setup: bool = False,
) -> tuple[Exchanged, ...]:
    """The schemas of the exchanges of a round, or of those before the first round.

    A client is run over no data at all, which costs next to nothing and gives messages of the right form.
    Where these change their shapes in the course of a run (`Algorithm.reshapes`), a hub asks before every
    exchange, with what it is about to send: `dry_run`.

    Args:
        algorithm: The method in force in the round.
        task: The model's architecture and the problem.
        solver: The local optimiser.
        work: How much clients train.
        model: Some model, `params` and `buffers`, on the device that is wanted.
        peer: Whether clients are nodes of a graph.
        setup: Whether the exchanges before the first round are meant.
    """
    client = idle_client(task, solver, work, next(iter(model["params"].values())).device, peer=peer)
    return rehearse(algorithm.quick(), client, model, setup=setup)


def rehearse(algorithm: Algorithm, client: Client, model: State, *, setup: bool) -> tuple[Exchanged, ...]:
    """The schemas of a round's exchanges, or of those before the first round, from a client without data."""
    hub, memory, link = algorithm.init_hub(model), algorithm.init_memory(model), algorithm.init_link(model)
    found: list[Exchanged] = []
    heard: State = {}
    for phase in algorithm.setup() if setup else algorithm.phases():
        if phase.replies:
            form, heard, link = dry_run(phase, client, heard, link)
        else:
            form, heard, memory = dry_run(phase, client, phase.broadcast(hub), memory)
        found.append(form)
    return tuple(found)


def idle_client(task: Task, solver: Solver, work: LocalWork, device: torch.device, *, peer: bool) -> Client:
    """A client that has no data, for dry runs; the arguments are those of `schemas_of`."""
    one = torch.ones((), dtype=task.dtype, device=device)
    key = torch.zeros_like(one, dtype=torch.int64)
    facts = {FACTS: {"samples": one, "steps": one, "decay": one, "round": one, "key": key, "common_key": key}}
    return client_of(task, solver, work, facts, idle, peer=peer)


def dry_run(phase: Phase, client: Client, down: State, memory: State) -> tuple[Exchanged, State, State]:
    """The schemas of one exchange, with an upload and a memory that have them.

    Args:
        phase: The exchange.
        client: One without data.
        down: What the hub is about to send.
        memory: What a client remembers, as the dry run of the exchange before gave it.
    """
    upload, after = phase.local(client, down, memory)
    return Exchanged(Schema.of(down), Schema.of(upload), Schema.of(after)), upload, after
