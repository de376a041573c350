"""Lanes on a GPU: some ticks are captured once, as a CUDA graph, and then replayed.

At a tick every lane takes one step. A small model's step is dozens of kernels of a few microseconds, and
launching each from Python takes longer than running it. A replay launches them all at once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from consilience.engine.executors.fusing import fused
from consilience.engine.executors.machine import Blueprint, LaneProgram, Machine
from consilience.engine.executors.program import overwriting, peak_bytes
from consilience.environment import Environment
from consilience.kernels.launching import compiling_ahead
from consilience.learning.ahead import ahead
from consilience.learning.batches import Pool
from consilience.types import IntArray

TICKS = 8
"""How many ticks a long capture has; what is left over is replayed tick by tick."""


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device on which work is tried and captured.

    It is always the same: cuBLAS keeps 32 MiB for each stream that it has seen. It is given them before a
    graph is captured, whose memory they would be part of, and would keep for good.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        one = torch.ones(1, 1, device=device)
        torch.addmm(one[0], one, one)
        torch.mm(one, one)
    return stream


class GraphMemory:
    """Memory that graphs share: what one leaves behind is of no use to any other.

    They must not run at the same time.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self.held = 0
        """How many bytes the graphs took, which nothing else can use while one of them lives."""

    def captures(self, device: torch.device) -> bool:
        """Whether there are graphs on a device."""
        return device.type == "cuda"

    def capture(self, work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
        """The graph of some work, which has run before: then libraries and compilers are ready."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # while a graph is captured nothing can be given back
        before = torch.cuda.memory_reserved(device)
        with torch.no_grad(), torch.cuda.stream(side_stream(device)), _nothing_collected():
            graph.capture_begin(pool=self._handle, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                self._handle = None  # it is taken for one in which something is being captured
                with contextlib.suppress(RuntimeError):  # about the capture, which is of no interest any more
                    graph.capture_end()
                raise
            graph.capture_end()
        self.held += max(0, torch.cuda.memory_reserved(device) - before)
        return graph


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """A context in which no garbage is collected: with a graph or an event among it a capture would fail."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Capture:
    """A graph, and the memory from which it reads which batches to run, or these batches."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    """Rows, weight and keys, as `Machine.run` takes them; where data are not resident, batches themselves."""

    def replay(self, *inputs: Tensor) -> None:
        """Run the graph on other batches."""
        for place, value in zip(self.inputs, inputs, strict=True):
            place.copy_(value)
        self.graph.replay()


class Captured(Machine):
    """A machine that replays its ticks.

    Args:
        pool: Where batches come from.
        blueprint: What to run.
        graphs: The memory of its graphs; None: it runs its ticks anew each time, which takes less memory.
        compiled: Whether operations are fused by torch.compile. That takes seconds, once.
    """

    def __init__(
        self, pool: Pool, blueprint: Blueprint, graphs: GraphMemory | None, *, compiled: bool
    ) -> None:
        super().__init__(pool, blueprint, whole=compiled or blueprint.width > 1)
        self._graphs, self._compiled = graphs, compiled
        self._steps: dict[bool, LaneProgram | Callable[..., None]] = {}
        self._captures: dict[tuple[int, bool], Capture] = {}

    def run(self, rows: Tensor, weight: Tensor, keys: Tensor, sizes: IntArray) -> None:
        full = [self.alone and all(size == self.blueprint.rows for size in tick) for tick in sizes.tolist()]
        most = self.pool.at_a_time(TICKS, rows[:1].numel())
        begin, parts = 0, list[tuple[tuple[int, bool], slice]]()
        while begin < len(rows):
            alike = full[begin : begin + most] == [full[begin]] * most
            kind = (most if alike else 1, full[begin])
            if self._graphs is not None and kind not in self._captures:
                self._captures[kind] = self._capture(self._graphs, *kind)
            parts.append((kind, slice(begin, begin + kind[0])))
            begin += kind[0]

        def given(part: tuple[tuple[int, bool], slice]) -> tuple[Tensor, ...]:
            return self._given(*(value[part[1]] for value in (rows, weight, keys)))

        # What is not resident is read by the host while the GPU is at work on what was read before.
        every = ahead(given, parts) if self.pool.streamed else map(given, parts)
        for (kind, _), inputs in zip(parts, every, strict=True):
            if self._graphs is not None:
                self._captures[kind].replay(*inputs)
            else:
                with torch.no_grad():
                    self._ticks(kind[1], *inputs)

    def _given(self, rows: Tensor, weight: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """What a graph reads: which batches to run, or these batches where data are not resident."""
        return self.pool.raw(rows, weight, keys)[:4] if self.pool.streamed else (rows, weight, keys)

    def _capture(self, graphs: GraphMemory, ticks: int, full: bool) -> Capture:
        shape, device = (ticks, self.blueprint.width), self.pool.targets.device
        rows = torch.zeros(*shape, self.blueprint.rows, dtype=torch.int64, device=device)
        ones, keys = torch.ones_like(rows, dtype=self.pool.dtype), torch.zeros_like(rows[..., 0])
        inputs = self._given(rows, ones, keys)
        before = [value.clone() for value in self.carry]
        stream = side_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        first = [value[:1] for value in inputs]
        with torch.no_grad(), torch.cuda.stream(stream):
            with compiling_ahead(device):
                self._ticks(full, *first)  # into any numbers, which do not stay
            self._ticks(full, *first)  # libraries start up, compilers compile
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = graphs.capture(lambda: self._ticks(full, *inputs), device)
        for place, value in zip(self.carry, before, strict=True):
            place.copy_(value)
        return Capture(graph, inputs)

    def _ticks(self, full: bool, *given: Tensor) -> None:
        if full not in self._steps:
            self._steps[full] = self._step(self.program(self.example(self.blueprint.rows), full=full))
        raw, step = given if self.pool.streamed else self.pool.raw(*given)[:4], self._steps[full]
        for tick in range(len(raw[0])):
            arguments = (*self.arguments, *(self.of_lanes(value[tick]) for value in raw))
            if isinstance(step, LaneProgram):
                self.keep(step.result.state(step.module.forward(*arguments)))
            else:
                step(*arguments)

    def _step(self, program: LaneProgram) -> LaneProgram | Callable[..., None]:
        """What runs a tick: a program whose results are to be kept, or one that writes them itself."""
        if self.alone and not self._compiled:
            return program
        module = self.in_place(program)
        if not self._compiled:
            return module.forward
        # What torch would keep in a folder for temporary files; it looks when its compiler is imported.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Environment().kernels.expanduser()))
        return compiled(module)

    def in_place(self, program: LaneProgram) -> GraphModule:
        """The same program, which writes the next carries over the old ones."""
        results = [program.result.paths.index(path) for path in self.blueprint.carry.paths]
        module = overwriting(program.module, results)
        exact = torch.get_float32_matmul_precision() == "highest"
        return module if self.alone else fused(module, layers=not exact)


def compiled(module: GraphModule, backend: str = "inductor") -> Callable[..., None]:
    """A program whose operations torch.compile fuses.

    It is called by its `forward`: where memory runs out in a module that is called itself, torch reads the
    traceback by a generator, refuses to compile that, and what is raised says nothing of memory any more.
    """
    return torch.compile(module.forward, fullgraph=True, dynamic=False, backend=backend)


def lane_bytes(pool: Pool, blueprint: Blueprint) -> int:
    """How many bytes a lane takes: what it holds, what a step computes at its peak, and its next batches."""
    lanes = 2  # a single one would run in another way
    machine = Captured(pool, replace(blueprint, width=lanes), None, compiled=False)
    batch = machine.example(blueprint.rows)
    device = pool.targets.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with compiling_ahead(device):
        program = machine.program(batch, full=False)
    # To record it takes more than to run it, and has to fit, too.
    measured = torch.cuda.max_memory_allocated(device) - before
    batches = TICKS * sum(value.nbytes for value in batch)
    return -(-(machine.held_bytes + max(measured, peak_bytes(program.module)) + batches) // lanes)
