"""Who takes part in an exchange."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.engine.rounds.told import Clients
from consilience.engine.world import World
from consilience.exchange.cohort import failed_clients, sample_clients
from consilience.types import IntArray


@dataclass(frozen=True)
class Cast:
    """Who takes part in an exchange, by replica."""

    sampled: tuple[tuple[int, ...], ...]
    failed: Clients
    """The sampled clients whose upload is lost."""


def everyone(world: World) -> Cast:
    """The cast of all clients that have data."""
    return Cast(tuple(tuple(r.available.tolist()) for r in world.replicas), _nobody(world))


def cohort_of(world: World, round_number: int, exchange: int = 0) -> Cast:
    """The cast of a round, as it was drawn in one of its exchanges: its clients, and who of them fails."""
    sampled = [
        sample_clients(
            replica.seed, round_number, _there(world, index, round_number), world.participation, exchange
        )
        for index, replica in enumerate(world.replicas)
    ]
    failed = (
        failed_clients(replica.seed, round_number, clients, world.failure_rate)
        for replica, clients in zip(world.replicas, sampled, strict=True)
    )
    return Cast(tuple(tuple(clients.tolist()) for clients in sampled), tuple(failed))


def _there(world: World, replica: int, round_number: int) -> IntArray:
    """The clients of a replica that have data, and are there and awake."""
    available = world.replicas[replica].available
    return available[world.there(replica, round_number)[available]] if world.graph else available


def _nobody(world: World) -> Clients:
    return tuple(frozenset() for _ in world.replicas)
