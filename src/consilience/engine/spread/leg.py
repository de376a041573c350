"""Whole replicas at a worker: it runs their rounds, and what comes back is how these went."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from consilience.engine.determinism import Precision, repeatable
from consilience.engine.rounds.pace import Pace
from consilience.engine.rounds.pending import Record
from consilience.engine.rounds.simulation import ClientResult, Simulation
from consilience.engine.spread.worker import Arrays, packed, unpacked

LOG = logging.getLogger("consilience")


class Make(Protocol):
    """What makes the simulation of some replicas, before its first round."""

    def __call__(self, *, only: tuple[int, ...]) -> Simulation: ...


@dataclass(frozen=True)
class Leg:
    """Rounds of some replicas, as an order.

    Whoever stands where it begins goes on from there. Anybody else begins with the snapshot that comes along,
    and repeats the rounds since then that were told before.
    """

    course: int
    """Names the replicas on their way."""
    replicas: tuple[int, ...]
    """Their numbers among all."""
    told: int
    """How many rounds were told before."""
    until: int
    """After how many rounds it ends."""
    pace: Pace
    snapshot: bool
    """Whether the state at the end is wanted."""


@dataclass(frozen=True)
class Ran:
    """How a leg went."""

    rounds: list[list[Record]]
    """The records of every round that was to be told."""
    said: list[str]
    """What there was to warn of."""
    snapshot: Arrays | None
    clients: list[ClientResult] | None
    """Every client's result, where the last round is over and the run asks for them."""


class Runner:
    """What runs legs at a worker; simulations stay until they are forgotten."""

    def __init__(self) -> None:
        self._standing: dict[int, tuple[Simulation, Precision]] = {}

    def run(self, leg: Leg, made: Callable[[], tuple[Make, Precision]], start: Arrays | None) -> Ran:
        """Run a leg.

        Args:
            leg: Which rounds of whom.
            made: Gives what makes the simulation, and how exact products are on a GPU.
            start: The snapshot to begin with where the simulation does not stand here; None: the beginning.
        """
        if leg.course not in self._standing:
            make, precision = made()
            self._standing[leg.course] = make(only=leg.replicas), precision
            if start is not None:
                begun = self._standing[leg.course][0]
                begun.restore(unpacked(start, begun.world.device))
        simulation, precision = self._standing[leg.course]
        rounds, said = list[list[Record]](), list[str]()
        with repeatable(simulation.world.device, precision):
            while simulation.round < leg.told:
                with _noted():  # what was told was said, too
                    simulation.step(evaluate=False)
            while simulation.round < leg.until:
                with _noted() as warnings:
                    rounds.append(_step(simulation, leg))
                said += warnings
            over = simulation.round == leg.pace.rounds
            clients = simulation.clients() if over and leg.pace.clients else None
        for line in clients or ():
            line["replica"] = leg.replicas[replica_of(line)]
        return Ran(rounds, said, packed(simulation.snapshot()) if leg.snapshot else None, clients)

    def forget(self, course: int) -> None:
        """Drop a simulation."""
        if course in self._standing:
            self._standing.pop(course)[0].world.executor.close()


def replica_of(line: ClientResult) -> int:
    """The number of the replica that a client's line is about."""
    number = line["replica"]
    assert isinstance(number, int)
    return number


def _step(simulation: Simulation, leg: Leg) -> list[Record]:
    """The records of the next round, by the numbers of replicas among all."""
    evaluate = leg.pace.evaluates(simulation.round + 1)
    records = simulation.step(evaluate=evaluate, trained=leg.pace.trained)
    return [replace(one, replica=leg.replicas[one.replica]) for one in records]


@contextmanager
def _noted() -> Iterator[list[str]]:
    """A context whose warnings are written down, so that they can be said where somebody reads them."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    propagated, LOG.propagate = LOG.propagate, False
    LOG.addHandler(handler)
    try:
        yield said
    finally:
        LOG.removeHandler(handler)
        LOG.propagate = propagated
