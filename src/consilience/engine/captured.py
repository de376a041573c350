"""Lanes on a GPU: some ticks are captured once, as a CUDA graph, and then replayed.

A small model's step is dozens of kernels of a few microseconds, and launching each from Python takes
longer than running it. A replay launches them all at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from consilience.engine.batches import Pool
from consilience.engine.machine import Blueprint, LaneProgram, Machine
from consilience.engine.program import overwriting

TICKS = 8
"""Of a long capture; what is left over is replayed tick by tick."""


@dataclass(frozen=True)
class Capture:
    """A graph, and the memory from which it reads which batches to run."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, Tensor, Tensor]
    """Rows, weight and keys, as `Machine.run` takes them."""

    def replay(self, *inputs: Tensor) -> None:
        """Run on other batches."""
        for place, value in zip(self.inputs, inputs, strict=True):
            place.copy_(value)
        self.graph.replay()


class Captured(Machine):
    """Lanes whose ticks are replayed.

    Args:
        pool: Where batches come from.
        blueprint: What to run.
        compiled: Whether operations are fused by torch.compile. That takes seconds, once.
    """

    def __init__(self, pool: Pool, blueprint: Blueprint, *, compiled: bool) -> None:
        super().__init__(pool, blueprint)
        program = LaneProgram.of(
            pool, blueprint, [*self.arguments(), *self.example(blueprint.rows)], whole=True
        )
        results = [program.result.paths.index(path) for path in blueprint.carry.paths]
        tick = overwriting(program.module, results)
        self._tick = torch.compile(tick, fullgraph=True, dynamic=False) if compiled else tick.forward
        self._captures: dict[int, Capture] = {}

    def run(self, rows: Tensor, weight: Tensor, keys: Tensor) -> None:
        begin = 0
        while begin < len(rows):
            ticks = TICKS if begin + TICKS <= len(rows) else 1
            if ticks not in self._captures:
                self._captures[ticks] = self._capture(ticks)
            chosen = slice(begin, begin + ticks)
            self._captures[ticks].replay(rows[chosen], weight[chosen], keys[chosen])
            begin += ticks

    def _capture(self, ticks: int) -> Capture:
        shape, device = (ticks, self.blueprint.width), self.pool.targets.device
        rows = torch.zeros(*shape, self.blueprint.rows, dtype=torch.int64, device=device)
        inputs = (rows, torch.ones_like(rows, dtype=self.pool.dtype), torch.zeros_like(rows[..., 0]))
        before = [value.clone() for value in self.carry]
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.no_grad(), torch.cuda.stream(stream):
            self._ticks(*(value[:1] for value in inputs))  # libraries set themselves up, compilers compile
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
            self._ticks(*inputs)
        for place, value in zip(self.carry, before, strict=True):
            place.copy_(value)
        return Capture(graph, inputs)

    def _ticks(self, rows: Tensor, weight: Tensor, keys: Tensor) -> None:
        raw = self.pool.raw(rows, weight, keys)
        arguments = self.arguments()
        for tick in range(len(rows)):
            self._tick(*arguments, *(self.of_lanes(value[tick]) for value in raw))
