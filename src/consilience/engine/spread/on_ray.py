"""Workers that are actors of a Ray cluster: one on this machine that is started for them, or any other."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from consilience.engine.determinism import Precision
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.spread.executor import Workers
from consilience.engine.spread.joining import cores, join, said
from consilience.engine.spread.journey import Hands
from consilience.engine.spread.leg import Leg, Ran, Runner
from consilience.engine.spread.leg import Make as MakeSome
from consilience.engine.spread.worker import Arrays, Done, Part, Worker
from consilience.errors import UserError

LOG = logging.getLogger("consilience")

PATIENCE = 120.0
"""How many seconds a cluster may be without a single worker before the run ends."""
STILLBORN = 3
"""How many workers may die as they start, one after the other, before the run ends."""
HEAD_START = 10.0
"""How many seconds the first exchange waits for more workers where some are there."""

Make = Callable[[], Simulation]
NUMBERS = itertools.count()
"""Tells the worlds of this process apart."""


class RayWorkers(Workers):
    """Actors of a cluster that have one world.

    Args:
        make: Makes the simulation that each of them has.
        precision: How exact products are on a GPU.
        staff: The actors.
    """

    def __init__(self, make: Make, precision: Precision, staff: Staff) -> None:
        self._staff, self._world = staff, next(NUMBERS)
        self._made = staff.ray.put((make, precision))
        staff.hire()
        for actor in staff.hired:
            actor.settle.remote(self._world, [self._made])

    def there(self) -> list[Any]:
        return self._staff.at_work()

    def carry_out(self, parts: Mapping[Any, Part], alike: dict[int, Arrays]) -> dict[Any, Done]:
        ray = self._staff.ray
        told = ray.put(alike)
        running = {
            actor.carry_out.remote(self._world, [self._made], part, told): actor
            for actor, part in parts.items()
        }
        done: dict[Any, Done] = {}
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            actor = running.pop(ready)
            try:
                answer = ray.get(ready)
                done |= {} if answer is None else {actor: answer}
            except ray.exceptions.RayTaskError as error:
                raise _retold(error) from None
            except ray.exceptions.RayError as error:  # the actor or its machine is gone
                self._staff.lose(actor, error)
        return done

    def close(self) -> None:
        for actor in self._staff.hired:
            actor.forget.remote(self._world)
        self._staff.rest()


class RayHands(Hands):
    """Actors of a cluster that run whole replicas.

    Args:
        staff: The actors.
    """

    def __init__(self, staff: Staff) -> None:
        self._staff = staff
        self._asked: dict[Any, Any] = {}
        """Who is to answer, by what will tell."""

    def there(self) -> list[Any]:
        return self._staff.at_work()

    def expected(self) -> int:
        self._staff.hire()
        return max(1, len(self._staff.hired))

    def hand_out(self, make: MakeSome, precision: Precision) -> Any:
        return self._staff.ray.put((make, precision))

    def ask(self, worker: Any, leg: Leg, made: Any, start: Arrays | None) -> Any:
        asked = worker.run.remote(leg, [made], start)
        self._asked[asked] = worker
        return asked

    def answers(self, *, wait: bool) -> list[tuple[Any, Ran | None]]:
        ray = self._staff.ray
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=None if wait else 0)
        found: list[tuple[Any, Ran | None]] = []
        for one in ready:
            worker = self._asked.pop(one)
            try:
                found.append((one, ray.get(one)))
            except ray.exceptions.RayTaskError as error:
                raise _retold(error) from None
            except ray.exceptions.RayError as error:  # the actor or its machine is gone
                self._staff.lose(worker, error)
                found.append((one, None))
        return found

    def forget(self, worker: Any, course: int) -> None:
        worker.leave.remote(course)

    def close(self) -> None:
        self._staff.rest()


class Staff:
    """The actors on a cluster. Who dies is replaced where there is room; new room is used.

    Args:
        cluster: The address of a cluster; `auto`: the one that runs here, or a new one; `local`: a new one.
        count: How many there are to be; None: one a GPU where they are to use these, else one a core.
        gpu: Whether each of them has a GPU.
    """

    def __init__(self, cluster: str, count: int | None, *, gpu: bool) -> None:
        self.ray, _, self._ours = join(cluster, count)
        self._kind, self.asked = ("GPU" if gpu else "CPU"), count
        self.hired: list[Any] = []
        self._coming: dict[Any, Any] = {}
        """Actors that have not said yet that they are there, by what will tell."""
        self.processes: dict[Any, int] = {}
        """The processes of those that are there."""
        self._stillborn = 0
        """How many died before they were there, since the last one that was."""
        if gpu and not self._room():
            raise UserError("executor ray: the cluster has no GPU; set device: cpu")

    def _room(self) -> int:
        if self._ours and self._kind == "CPU":  # nobody else works there
            return self.asked or cores()
        return int(self.ray.cluster_resources().get(self._kind, 0))

    def hire(self) -> None:
        """Have as many as are asked for, or as many as the cluster has room for."""
        room = self._room()
        wanted = min(self.asked or room, room)
        for actor in self.hired[wanted:] if self.asked else ():
            self._dismiss(actor)
        options = {"num_gpus": 1} if self._kind == "GPU" else {"num_cpus": 0 if self._ours else 1}
        for _ in range(wanted - len(self.hired)):
            actor = self.ray.remote(_Actor).options(**options, max_restarts=0).remote()
            self.hired.append(actor)
            self._coming[actor.there.remote()] = actor

    def at_work(self) -> list[Any]:
        """Those that are there: all that were hired, or, after a while, at least one."""
        self.hire()
        start = time.monotonic()
        while True:
            self._welcome()
            there = [actor for actor in self.hired if actor in self.processes]
            waited = time.monotonic() - start
            if there and (not self._coming or waited > HEAD_START):
                return there
            if waited > PATIENCE:
                raise UserError(
                    f"executor ray: the cluster has had no {self._kind} for a worker in {PATIENCE:.0f} s; "
                    "`consilience resume` goes on when it has"
                )
            time.sleep(0.02)
            self.hire()

    def _welcome(self) -> None:
        if not self._coming:
            return
        told, _ = self.ray.wait(list(self._coming), num_returns=len(self._coming), timeout=0)
        for one in told:
            actor = self._coming.pop(one)
            try:
                self.processes[actor] = self.ray.get(one)
                self._stillborn = 0
            except self.ray.exceptions.RayError as error:
                self.lose(actor, error)
                self._stillborn += 1
                if self._stillborn == STILLBORN:
                    raise UserError(f"executor ray: workers die as they start: {said(error)}") from None

    def lose(self, actor: Any, error: Exception) -> None:
        """Do without an actor that is gone."""
        if actor in self.hired:
            self.hired.remove(actor)
            process = self.processes.pop(actor, "new")
            LOG.warning("worker %s was lost, and its work is done again (%s)", process, type(error).__name__)

    def rest(self) -> None:
        """Leave the room on a cluster that others may use to them; our own stays for the next run."""
        if not self._ours:
            for actor in list(self.hired):
                self._dismiss(actor)

    def _dismiss(self, actor: Any) -> None:
        self.ray.kill(actor)
        self.hired.remove(actor)
        self.processes.pop(actor, None)
        self._coming = {told: other for told, other in self._coming.items() if other is not actor}


class _Actor:
    """A worker as an actor. It has one thread: there are as many workers as cores, or as GPUs."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._world = -1
        self._worker: Worker | None = None
        self._runner = Runner()

    def there(self) -> int:
        """Say that it is there: the number of its process."""
        return os.getpid()

    def settle(self, world: int, made: list[Any]) -> None:
        """Make a world, so that it is there when it is needed."""
        self._in(world, made)

    def carry_out(self, world: int, made: list[Any], part: Part, alike: dict[int, Arrays]) -> Done | None:
        """What some jobs did in a world."""
        return self._in(world, made).carry_out(part, alike)

    def run(self, leg: Leg, made: list[Any], start: Arrays | None) -> Ran:
        """Run rounds of whole replicas."""
        import ray

        return self._runner.run(leg, lambda: ray.get(made[0]), start)

    def leave(self, course: int) -> None:
        """Drop replicas."""
        self._runner.forget(course)

    def _in(self, world: int, made: list[Any]) -> Worker:
        if self._worker is None or self._world != world:
            import ray

            self.forget(self._world)
            self._worker, self._world = Worker(*ray.get(made[0])), world
        return self._worker

    def forget(self, world: int) -> None:
        """Drop a world."""
        if self._worker is not None and self._world == world:
            self._worker.close()
            self._worker = None


STAFF: dict[tuple[str, bool], Staff] = {}
"""The actors of this process, by where they are; they outlive a simulation: to start them takes seconds."""


def staff_of(cluster: str, count: int | None, *, gpu: bool) -> Staff:
    """The actors of this process on a cluster, as many as are asked for."""
    staff = STAFF.get((cluster, gpu))
    if staff is None or not staff.ray.is_initialized():  # who shuts Ray down has ended them
        staff = STAFF[cluster, gpu] = Staff(cluster, count, gpu=gpu)
    staff.asked = count
    return staff


def _retold(error: Any) -> Exception:
    """What went wrong in a worker, as if it had gone wrong here."""
    cause = error.cause
    return UserError(str(cause)) if isinstance(cause, UserError) else RuntimeError(f"in a worker: {error}")
