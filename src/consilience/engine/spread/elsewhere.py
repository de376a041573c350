"""What looks like a simulation, while workers run its rounds, each some of its replicas."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from consilience.algorithm import Algorithm
from consilience.engine.rounds.pending import Pending, Record
from consilience.engine.rounds.simulation import ClientResult, Simulation
from consilience.engine.spread.journey import Journey
from consilience.engine.world import World
from consilience.types import State


@dataclass(frozen=True)
class Known(Pending):
    """A round that is over."""

    found: list[Record]

    def records(self) -> list[Record]:
        """A record for every replica."""
        return self.found


class Elsewhere(Simulation):
    """A simulation whose state is at workers, and comes here when somebody asks for models.

    Args:
        world: The setting, with all replicas.
        algorithm: With holes where variants differ.
        journey: The replicas at their workers, which have begun.
    """

    def __init__(self, world: World, algorithm: Algorithm, journey: Journey) -> None:
        super().__init__(world, algorithm)
        self._journey, self._here = journey, 0
        self.round = journey.round

    def advance(self, *, evaluate: bool = True, trained: bool = True) -> Pending:
        """The next round, when it is over; what is evaluated follows from the journey's pace."""
        records = self._journey.next(wait=True)
        assert records is not None  # since it waits
        self.round = self._journey.round
        return Known(records)

    def models(self, rows: list[tuple[int, int]], *, own: bool = False) -> State:
        if self._here != self.round:
            super().restore(self._journey.snapshot())
            self._here = self.round
        return super().models(rows, own=own)

    def clients(self, replicas: Collection[int] | None = None) -> list[ClientResult]:
        found = self._journey.clients()
        if found is None:
            return super().clients(replicas)
        return [line for line in found if replicas is None or line["replica"] in replicas]

    def halt(self) -> int:
        return self._journey.halt()

    def snapshot(self) -> State:
        return self._journey.snapshot()

    def restore(self, snapshot: State) -> None:
        raise RuntimeError("a journey begins with a snapshot: make another one")
