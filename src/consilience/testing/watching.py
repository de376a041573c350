"""Methods whose functions are watched while the engine calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from consilience.algorithm import Algorithm, Phase, Setting
from consilience.client import Client
from consilience.engine.rounds.simulation import Record
from consilience.graphs.base import Topology
from consilience.testing.federation import Layout, Subject, simulation_of
from consilience.types import State

Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """A function of a method."""

    role: str
    """Its name in the contract."""
    algorithm: Algorithm
    """Whose it is: the method in force in the round."""
    exchange: str = ""
    """Which exchange of the round or of the setup it belongs to."""


class Watch:
    """Is told of every call of a method's functions."""

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        """The result of the call, looked at or not."""
        return function(*given)


@dataclass(frozen=True)
class Watched(Algorithm):
    """A method that does what another one does, under a watch."""

    inner: Algorithm
    watch: Watch

    def init_hub(self, model: State) -> State:
        return self._watching("init_hub", self.inner.init_hub)(model)

    def init_memory(self, model: State) -> State:
        return self._watching("init_memory", self.inner.init_memory)(model)

    def init_link(self, model: State) -> State:
        return self._watching("init_link", self.inner.init_link)(model)

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        return self.phases()[0].local(client, down, memory)

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._phase(one, f"exchange {i}") for i, one in enumerate(self.inner.phases()))

    def setup(self) -> tuple[Phase, ...]:
        return tuple(self._phase(one, f"setup {i}") for i, one in enumerate(self.inner.setup()))

    def at(self, round_number: int) -> Algorithm:
        return watched(self.inner.at(round_number), self.watch)

    def model(self, hub: State, memory: State) -> State:
        return self.inner.model(hub, memory)

    def refuse(self, setting: Setting) -> str | None:
        return self.inner.refuse(setting)

    def _phase(self, phase: Phase, name: str) -> Phase:
        return phase._replace(
            broadcast=self._watching("broadcast", phase.broadcast, name),
            local=self._watching("local", phase.local, name),
            combine=self._watching("combine", phase.combine, name),
        )

    def _watching(
        self, role: str, function: Callable[..., Result], exchange: str = ""
    ) -> Callable[..., Result]:
        place = Place(role, self.inner, exchange)
        return lambda *given: self.watch.call(place, function, given)


def watched(algorithm: Algorithm, watch: Watch) -> Algorithm:
    """The same method, with a watch on its functions."""
    # What a class says about its method, the watched one says too.
    facts = {"name": algorithm.name, "personal": algorithm.personal, "cached": algorithm.cached}
    watched: Algorithm = type("Watched", (Watched,), facts)(algorithm, watch)
    return watched


def watch_rounds(subject: Subject, topology: Topology, watch: Watch) -> Iterator[Record]:
    """Two rounds under a watch, client after client."""
    layout = Layout(topology)
    simulation = simulation_of(subject, layout, (watched(subject.algorithm, watch), subject.solver))
    return (simulation.step(evaluate=False)[0] for _ in range(2))
