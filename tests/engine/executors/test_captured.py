"""What a machine of a GPU does with batches, seen on a CPU: its graphs are functions there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.engine.executors import captured, workshop
from consilience.engine.executors.captured import Capture, Captured, GraphMemory


@dataclass(frozen=True)
class Play:
    """What stands for a graph."""

    work: Any

    def replay(self) -> None:
        with torch.no_grad():
            self.work()


class Played(Captured):
    """A machine whose graphs are functions."""

    captures: list[tuple[int, bool]] = []  # noqa: RUF012
    obstacle = None

    def __init__(self, pool: Any, blueprint: Any) -> None:
        super().__init__(pool, blueprint, GraphMemory(), compiled=False)

    def _capture(self, graphs: GraphMemory, ticks: int, full: bool) -> Capture:
        self.captures.append((ticks, full))
        shape = (ticks, self.blueprint.width, self.blueprint.rows)
        rows = torch.zeros(shape, dtype=torch.int64)
        given = self._given(rows, torch.ones(shape, dtype=self.pool.dtype), rows[..., 0].clone())
        return Capture(Play(lambda: self._ticks(full, *given)), given)


RANDOM = np.random.default_rng(0)
POINTS, CLASSES = RANDOM.normal(size=(150, 6)), np.arange(150) % 3
OWN = cs.Dataset.from_arrays("points", POINTS, CLASSES, POINTS[:20], CLASSES[:20])


@pytest.mark.parametrize("bytes_read", [2**20, 3 * 8 * 6 * 8], ids=["long", "short"])
def test_streamed_batches_are_those_of_resident_data(monkeypatch: pytest.MonkeyPatch, bytes_read: int):
    settings: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [4]},
        "clients": 2,
        "rounds": 2,
        "local": {"epochs": 2, "batch_size": 8},
        "lanes": 1,
        "dtype": "float64",
    }
    monkeypatch.setattr(workshop, "Plain", Played)
    monkeypatch.setattr("consilience.learning.batches.READ_BYTES", bytes_read)
    Played.captures.clear()
    resident, streamed = (
        cs.run("fedavg", data={"name": "points", "own": OWN, "resident": kind}, **settings)
        for kind in ("always", "never")
    )
    assert resident.digest == streamed.digest
    long = {ticks for ticks, _ in Played.captures}
    assert long == ({1, captured.TICKS} if bytes_read > 2**16 else {1, 3, captured.TICKS})
    monkeypatch.undo()
    plain = cs.run("fedavg", data=OWN, **settings)
    assert plain.score == pytest.approx(streamed.score)
    (first,), (second,) = plain.models.values(), streamed.models.values()
    for name, value in first["params"].items():
        assert torch.allclose(value, second["params"][name], rtol=1e-9, atol=1e-12)


def test_want_of_memory_in_a_compiled_program_is_said_as_it_is():
    def exhausted(value: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    operation = torch.library.custom_op("consilience_tests::exhausted", exhausted, mutates_args=())
    operation.register_fake(torch.empty_like)
    graph = torch.fx.Graph()
    graph.output(graph.call_function(operation._opoverload, (graph.placeholder("value"),)))
    program = captured.compiled(torch.fx.GraphModule(torch.nn.Module(), graph), backend="eager")
    with pytest.raises(torch.OutOfMemoryError):
        program(torch.ones(3))
