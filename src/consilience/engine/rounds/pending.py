"""How a round went: what is known of it when it has been begun, and its records when it is over."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from consilience.engine.rounds.evaluation import Scored
from consilience.engine.rounds.told import Told
from consilience.engine.world import World
from consilience.errors import some_of
from consilience.exchange.traffic import Traffic

LOG = logging.getLogger("consilience")

Nodes = Callable[[], list[dict[str, list[float]]]]
"""What there is to say about the nodes of a graph, by replica, once somebody asks."""


@dataclass(frozen=True)
class Record:
    """What one replica did in one round."""

    replica: int
    round: int
    """The round, counted from 1."""
    train_loss: float | None
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    messages: int
    """How many messages clients sent; on a graph, one for every edge and direction."""
    samples: int
    """How many samples optimiser steps were taken on."""
    seconds: float
    """Wall-clock time of the round, all replicas together."""
    dropped: tuple[str, ...]
    """Which clients were missing, and why."""
    diverged: bool = False
    """Whether nobody's upload was sound, though some clients worked."""
    scores: dict[str, float] = field(default_factory=dict)
    """The problem's scores, e.g. test_accuracy and test_loss; of many models the spread of its metric."""
    nodes: dict[str, list[float]] = field(default_factory=dict)
    """Lists over the nodes of a graph: the metric, consensus and so on; NaN where there is nothing to say."""


@dataclass
class Clock:
    """The time at which the last round was over."""

    done: float = 0.0

    def lap(self, start: float) -> float:
        """The seconds since a start, or since the round before was over if that was later."""
        before, self.done = self.done, time.perf_counter()
        return max(0.0, self.done - max(start, before))  # a clock may be set back


class Pending(ABC):
    """A round that may not be over yet."""

    @abstractmethod
    def records(self) -> list[Record]:
        """A record for every replica, when the round is over; to be asked for once, in order."""


@dataclass(frozen=True)
class Begun(Pending):
    """A round that was begun, and what will tell how it went."""

    world: World
    label: str
    """The algorithm's."""
    clock: Clock
    round: int
    """The round, counted from 1."""
    start: float
    """When it was begun."""
    told: list[Told]
    traffic: list[tuple[Traffic, ...]]
    """The bytes and messages of every exchange, by replica."""
    scored: list[Scored]
    nodes: Nodes

    def records(self) -> list[Record]:
        replicas = range(len(self.world.replicas))
        scores = [scores_of(self.scored, replica) for replica in replicas]
        nodes = self.nodes()
        self._warn()
        seconds = self.clock.lap(self.start)  # the last number is here
        return [self._record(replica, seconds, scores[replica], nodes[replica]) for replica in replicas]

    def _record(
        self, replica: int, seconds: float, scores: dict[str, float], nodes: dict[str, list[float]]
    ) -> Record:
        traffic = Traffic()
        for exchange in self.traffic:
            traffic.add(exchange[replica])
        return Record(
            replica=replica,
            round=self.round,
            train_loss=_train_loss(self.told, replica),
            bytes_up=dict(traffic.up),
            bytes_down=dict(traffic.down),
            messages=traffic.messages,
            samples=int(sum(told.logged("rows", replica) for told in self.told)),
            seconds=seconds,
            dropped=_dropped(self.told, replica, self.world.replicas[replica].name),
            diverged=any(_all_rejected(told, replica) for told in self.told),
            scores=scores,
            nodes=nodes,
        )

    def _warn(self) -> None:
        rejected: dict[int, dict[int, str]] = {}  # by seed; which variants these were, records say
        for replica, which in enumerate(self.world.replicas):
            clients = {client for told in self.told for client in told.rejected(replica)}
            rejected.setdefault(which.seed, {}).update({client: which.name(client) for client in clients})
        for seed, names in rejected.items():
            if names:
                LOG.warning(
                    "%s, seed %d, round %d: rejected the uploads of %s",
                    self.label,
                    seed,
                    self.round,
                    some_of([name for _, name in sorted(names.items())]),
                )


def scores_of(scored: list[Scored], replica: int) -> dict[str, float]:
    """All scores of a replica, by name."""
    return {name: value for one in scored for name, value in one.summary(replica).items()}


def _train_loss(told: Sequence[Told], replica: int) -> float | None:
    """The mean loss over all samples of all local steps, without rejected clients."""
    loss, rows = (sum(one.logged(name, replica, sound=True) for one in told) for name in ("loss", "rows"))
    return loss / rows if rows else None


def _all_rejected(told: Told, replica: int) -> bool:
    """Whether clients of a replica worked, and none of them made anything finite."""
    rows = told.rows_of(replica)
    return len(rows) > 0 and not told.arrived[rows].any()


def _dropped(told: Sequence[Told], replica: int, name: Callable[[int], str]) -> tuple[str, ...]:
    """Who was missing and why."""
    lost = {client: "upload lost" for one in told for client in one.failed[replica]}
    bad = {client: "upload rejected" for one in told for client in one.rejected(replica)}
    return tuple(f"{name(client)} ({why})" for client, why in sorted((lost | bad).items()))
