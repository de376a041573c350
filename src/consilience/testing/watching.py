"""Methods whose functions are watched while the engine calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from consilience.algorithm import Algorithm, Phase, Wrapper
from consilience.client import Client
from consilience.engine.rounds.pending import Record
from consilience.exchange.device import idle
from consilience.graphs.base import Topology
from consilience.testing.federation import Layout, Subject, simulation_of
from consilience.types import State

Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """A function of a method that is watched, and where it belongs."""

    role: str
    """The function's name in the contract."""
    algorithm: Algorithm
    """The method that has the function: the one in force in the round."""
    exchange: str = ""
    """The exchange of the round or of the setup that the function belongs to."""

    @property
    def phase(self) -> Phase:
        """The exchange that the function belongs to."""
        kind, number = self.exchange.split()
        return (self.algorithm.setup() if kind == "setup" else self.algorithm.phases())[int(number)]


class Watch:
    """What is told of every call of a method's functions."""

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        """The result of the call, looked at or not."""
        return function(*given)


@dataclass(frozen=True)
class Watched(Wrapper):
    """A method that does what another one does, under a watch."""

    name: ClassVar[str] = "watched"
    watch: Watch

    def init_hub(self, model: State) -> State:
        return self._watching("init_hub", self.inner.init_hub)(model)

    def init_memory(self, model: State) -> State:
        return self._watching("init_memory", self.inner.init_memory)(model)

    def init_link(self, model: State) -> State:
        return self._watching("init_link", self.inner.init_link)(model)

    def change(self, phase: Phase, exchange: int, *, setup: bool) -> Phase:
        name = f"{'setup' if setup else 'exchange'} {exchange}"
        return phase._replace(
            broadcast=self._watching("broadcast", phase.broadcast, name),
            local=self._watching("local", phase.local, name),
            combine=self._watching("combine", phase.combine, name),
        )

    def _watching(
        self, role: str, function: Callable[..., Result], exchange: str = ""
    ) -> Callable[..., Result]:
        place = Place(role, self.inner, exchange)

        def call(*given: Any) -> Result:
            # A dry run, which shows the form of messages, sends nothing.
            dry = isinstance(given[0], Client) and given[0].fold is idle
            return function(*given) if dry else self.watch.call(place, function, given)

        return call


def watch_rounds(subject: Subject, topology: Topology, watch: Watch) -> Iterator[Record]:
    """The records of two rounds under a watch, client after client."""
    layout = Layout(topology)
    simulation = simulation_of(subject, layout, (Watched(subject.algorithm, watch), subject.solver))
    return (simulation.step(evaluate=False)[0] for _ in range(2))
