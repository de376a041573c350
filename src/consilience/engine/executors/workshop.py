"""The machines that were built, and the memory that they may take."""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch

from consilience.client import Step
from consilience.engine.executors.base import UNLIMITED
from consilience.engine.executors.captured import Captured, GraphMemory, lane_bytes
from consilience.engine.executors.crew import Crew
from consilience.engine.executors.machine import Blueprint, Machine, Plain
from consilience.engine.executors.scheduling import in_turns
from consilience.engine.memory import shown
from consilience.errors import UserError
from consilience.learning.batches import Pool

LOG = logging.getLogger("consilience")

MOST = 32
"""How many machines are kept at most."""
KEPT_SHARE = 4
"""Machines that wait to be used again take no more than one part in so many of the memory."""
WORKING_SHARE = 4
"""A machine that runs takes, with all that it computes, no more than one part in so many of the memory.

As much again may be needed while another one is recorded, since the memory of graphs is not given back.
"""

GRAPHS_SHARE = 2
"""Graphs may hold one part in so many of the memory; where they take more there will be none."""


class Workshop:
    """The machines that were built, kept while memory allows so that later rounds find them.

    Args:
        pool: Where batches come from.
        memory: How many bytes of the device may be used.
        compiled: Whether machines on a GPU are compiled.
    """

    def __init__(self, pool: Pool, memory: int = UNLIMITED, *, compiled: bool = False) -> None:
        self.pool, self.memory, self.compiled = pool, memory, compiled
        self._machines: OrderedDict[tuple[Blueprint, int], Machine] = OrderedDict()  # the oldest use first
        self._lane_bytes: dict[Blueprint, int] = {}
        self._most = UNLIMITED  # lanes, since memory ran out
        self._graphs: GraphMemory | None = GraphMemory()  # None since memory ran out even so
        self._crew: Crew | None = None
        self._told: set[str] = set()
        self._obstacles: dict[Step, list[str]] = {}

    def tried(self, step: Step) -> int:
        """In how many ways a step could not be recorded: for many clients at once, and for one alone."""
        return len(self._obstacles.get(step, ()))

    def give_in(self, step: Step, error: Exception) -> None:
        """Remember why a step cannot be recorded the way that was tried."""
        self._obstacles.setdefault(step, []).append(str(error))

    def excuse(self, step: Step) -> None:
        """Say once what it costs that a step cannot be recorded."""
        reasons = self._obstacles.get(step, [])
        if not reasons or "alone" in self._told:
            return
        self._told.add("alone")
        cost = (
            "about as slow as executor: sequential"
            if len(reasons) > 1
            else "slower than side by side, by up to the number of lanes"
        )
        why = " ".join(reasons[-1].split("\n")[0].split())
        LOG.warning("this model's clients run one after the other, %s: %.200s", cost, why)

    def lanes(self, blueprint: Blueprint) -> int:
        """How many of a blueprint's lanes fit into memory, at least one.

        That follows from what one lane takes, and not from what happens to be free: a run must repeat.
        """
        width = 1 if self.tried(blueprint.step) else in_turns(blueprint.width, self._most)
        if not self.pool.targets.is_cuda or width == 1 or self.memory == UNLIMITED:
            return width
        return in_turns(width, max(1, self.memory // WORKING_SHARE // self._lane(blueprint)))

    def _lane(self, blueprint: Blueprint) -> int:
        any_width = replace(blueprint, width=0)
        if any_width not in self._lane_bytes:
            self._lane_bytes[any_width] = lane_bytes(self.pool, blueprint)
        return self._lane_bytes[any_width]

    def machines(self, blueprints: Sequence[Blueprint]) -> list[Machine]:
        """A machine for each of some workers, built where there is none; others may have to go."""
        wanted = [(blueprint, worker) for worker, blueprint in enumerate(blueprints)]
        for key in wanted:
            if key not in self._machines:
                self._make_room(set(wanted))
                self._machines[key] = self._build(key[0])
            self._machines.move_to_end(key)
        return [self._machines[key] for key in wanted]

    def crew(self, machines: Sequence[Machine]) -> Crew:
        """A crew with a process for each of these machines, which all know."""
        if self._crew is None or not self._crew.can_run(machines):
            if self._crew:
                self._crew.close()
            self._crew = Crew(list(self._machines.values()), len(machines))
        return self._crew

    def shrink(self, lanes: int) -> None:
        """Free all machines; from now on at most half of some number of lanes run side by side."""
        self.clear()
        if "memory" not in self._told:
            self._told.add("memory")
            LOG.warning(
                "out of memory with %d clients side by side: going on with at most %d", lanes, lanes // 2
            )
        self._most = max(1, lanes // 2)

    def leave_room(self) -> None:
        """Give graphs up where they hold so much that what is left may be too little for all else."""
        if self._graphs is not None and self._graphs.held > self.memory // GRAPHS_SHARE:
            self.stop_capturing()

    def stop_capturing(self) -> bool:
        """Free all machines, and build others that take the least memory; False if they did already.

        What a graph needs, cuDNN's workspaces of gigabytes among it, is its own for as long as it lives.
        """
        captured, self._graphs = self._graphs is not None, None
        self.clear()
        return captured

    def shortage(self) -> UserError:
        """What to say where not even one client fits."""
        needed = WORKING_SHARE * max(self._lane_bytes.values(), default=0)
        more = f"{shown(needed)} of memory" if needed > self.memory else "more memory"
        return UserError(
            f"one client's step does not fit into the {shown(self.memory)} of memory that may be used: "
            f"set a smaller local.batch_size, a smaller model, or {more}"
        )

    def clear(self) -> None:
        """Let all machines go, and the memory of their graphs."""
        self._machines.clear()
        if self._graphs is not None:
            self._graphs = GraphMemory()
        if self.pool.targets.is_cuda:
            gc.collect()  # compiled steps refer to themselves
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Let the processes go."""
        if self._crew:
            self._crew.close()
            self._crew = None

    def _make_room(self, used: set[tuple[Blueprint, int]]) -> None:
        """Let machines go that were not used for longest, while there are too many or they are too large."""
        idle = [key for key in self._machines if key not in used]
        held = sum(machine.held_bytes for machine in self._machines.values())
        for key in idle:
            if held <= self.memory // KEPT_SHARE and len(self._machines) < MOST:
                return
            held -= self._machines.pop(key).held_bytes

    def _build(self, blueprint: Blueprint) -> Machine:
        if self.pool.targets.is_cuda:
            return Captured(self.pool, blueprint, self._graphs, compiled=self.compiled)
        machine = Plain(self.pool, blueprint)
        if machine.obstacle and machine.obstacle not in self._told:
            self._told.add(machine.obstacle)
            LOG.info("some steps run the slower way, as they were recorded: %s", machine.obstacle)
        return machine
