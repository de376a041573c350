"""Small ragged federations whose messages can be looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from consilience.algorithm import Algorithm
from consilience.engine.rounds.pending import Record
from consilience.engine.rounds.simulation import Simulation
from consilience.graphs.base import Topology
from consilience.testing import prepare
from consilience.testing.federation import Layout, simulation_of
from consilience.testing.watching import Place, Watch, Watched
from consilience.types import State


class Uploads(Watch):
    """Keeps every client's messages, with what they were made from, in the order in which they are sent."""

    def __init__(self) -> None:
        self.sent: list[State] = []
        self.received: list[State] = []
        self.memories: list[tuple[State, State]] = []
        """Before and after."""

    def call(self, place: Place, function, given):
        result = function(*given)
        if place.role == "local":
            self.received.append(given[1])
            self.sent.append(result[0])
            self.memories.append((given[2], result[1]))
        return result


class Play:
    """A method in a federation of five clients, for some rounds."""

    def __init__(self, algorithm: Algorithm, rounds: int, layout: Layout, seen: Uploads | None) -> None:
        subject = prepare(algorithm)
        chosen = algorithm if seen is None else Watched(algorithm, seen)
        self.simulation: Simulation = simulation_of(subject, layout, (chosen, subject.solver))
        self.records: list[Record] = [self.simulation.step(evaluate=False)[0] for _ in range(rounds)]
        self.uploads = seen or Uploads()

    @property
    def params(self) -> dict[str, torch.Tensor]:
        return self.simulation.hub["params"]


@pytest.fixture
def play() -> Callable[..., Play]:
    """Plays a method; client after client where messages are looked at."""

    def run(
        algorithm: Algorithm,
        rounds: int = 2,
        topology: Topology | None = None,
        dtype: torch.dtype = torch.float64,
        lanes: int = 0,
    ) -> Play:
        layout = (
            Layout(dtype=dtype, lanes=lanes)
            if topology is None
            else Layout(topology, dtype=dtype, lanes=lanes)
        )
        return Play(algorithm, rounds, layout, None if lanes else Uploads())

    return run
