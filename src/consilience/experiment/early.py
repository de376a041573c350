"""Arms whose replicas are whole at workers, and those of them that have begun before their turn.

What such an arm has done so far lies beside the run's own files, as the lines and the checkpoint of a run of
its own. When its turn comes the lines go where those of one process would have been.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from consilience import tree
from consilience.engine.build import memory_bytes, simulate
from consilience.engine.choosing import at_worker
from consilience.engine.rounds.pace import Pace
from consilience.engine.rounds.store import HOST_BYTES
from consilience.engine.spread.journey import Dispatch, Hands, Journey
from consilience.errors import DamageError
from consilience.experiment.checkpoint import Checkpoint
from consilience.experiment.folder import METRICS, RunFolder
from consilience.experiment.planning import Arm
from consilience.experiment.records import metrics_line
from consilience.types import IntArray, State

LOG = logging.getLogger("consilience")

Lines = list[dict[str, Any]]
Seal = Callable[[int, int, dict[str, Tensor]], Checkpoint]
"""Makes the checkpoint of an arm, from its number, a number of lines, and a state."""


def pace_of(arm: Arm) -> Pace:
    """What is due after which round of an arm."""
    config = arm.config
    evaluate, every = config.evaluate, config.checkpoint.every
    return Pace(config.rounds, evaluate.every, evaluate.trained, every, evaluate.clients)


@dataclass
class Done:
    """What an arm did before its turn."""

    lines: Lines
    kept: int
    """How many of the lines belong to the state."""
    state: dict[str, Tensor]


class Early:
    """The arms of a run that workers run whole.

    Args:
        arms: All arms.
        folder: The run's folder, if it has one.
        seal: Makes checkpoints.
        watched: Whether functions look at every round: then each arm waits for its turn.
    """

    def __init__(self, arms: Sequence[Arm], folder: RunFolder | None, seal: Seal, *, watched: bool) -> None:
        self._arms, self._folder, self._seal, self._watched = arms, folder, seal, watched
        self._dispatches: dict[object, Dispatch] = {}
        self._begun: dict[int, tuple[Journey, Done]] = {}
        self._sides: dict[int, RunFolder] = {}
        self._in_files = functools.cache(lambda number: _in_files(arms[number]))

    def is_whole(self, number: int) -> bool:
        """Whether workers run an arm's replicas whole.

        They do if it has, together with those after it that may run at the same time, at least as many
        replicas as there are workers. Memories that are kept in files stay with the files.
        """
        arm = self._arms[number]
        if not arm.scene.executor.startswith("ray") or self._in_files(number):
            return False
        together = len(_loads(arm))
        for other in self._arms[number + 1 :]:
            if not self._may_be_early(other) or _place(other) != _place(arm):
                break
            together += len(_loads(other))
        return together >= self._dispatch(arm).hands.expected()

    def _may_be_early(self, arm: Arm) -> bool:
        return not (self._watched or arm.config.stop_when)

    def _dispatch(self, arm: Arm) -> Dispatch:
        place = _place(arm)
        if place not in self._dispatches:
            self._dispatches[place] = Dispatch(hands_of(arm))
        return self._dispatches[place]

    def journey(self, number: int, start: State | None) -> Journey:
        """An arm that sets out, from a state or from the beginning."""
        arm = self._arms[number]
        make = functools.partial(simulate, at_worker(arm.scene), arm.variants)
        watched = self._watched or arm.config.stop_when is not None
        return Journey(
            self._dispatch(arm),
            make,
            arm.scene.precision,
            _loads(arm),
            arm.scene.population,
            pace_of(arm),
            start,
            watched=watched,
        )

    def turn(self, number: int) -> tuple[Journey | None, Done]:
        """The journey of an arm whose turn has come, if it has begun, and what it has done."""
        if number in self._begun:
            return self._begun.pop(number)
        return None, self._recovered(number)

    def _recovered(self, number: int) -> Done:
        """What an arm had done when the run was interrupted; what is damaged of that is done again."""
        side = self._side(number)
        if side is None or not side.path.exists():
            return Done([], 0, {})
        try:
            checkpoint = side.load_checkpoint()
            if checkpoint is not None:
                own = self._seal(number, 0, {})
                side.check_origin(checkpoint, own.config, own.model)
                lines = side.truncate(METRICS, checkpoint.metrics, checkpoint.files[METRICS])
                return Done(lines, len(lines), checkpoint.state)
        except DamageError as error:
            LOG.warning("%s; what %s did before its turn is done again", error, self._arms[number].name)
        self.forget(number)
        return Done([], 0, {})

    def _side(self, number: int) -> RunFolder | None:
        """Where what an arm does before its turn is kept: one object, which knows its files' digests."""
        if self._folder and number not in self._sides:
            self._sides[number] = self._folder.early(self._arms[number].name)
        return self._sides.get(number)

    def forget(self, number: int) -> None:
        """Drop what was kept of an arm before its turn: it is where it belongs."""
        if self._folder:
            self._folder.forget_early(self._arms[number].name)
            self._sides.pop(number, None)

    def go_on(self, number: int, begin: Callable[[int], dict[str, Tensor]]) -> None:
        """Write down what arms after one that is whole have done, and let more begin where workers are idle.

        Args:
            number: The arm whose turn it is.
            begin: Gives the state that an arm begins with, where it has done nothing yet.
        """
        for early, (journey, done) in self._begun.items():
            self._write_down(early, journey, done)
        upcoming = number + 1
        while upcoming in self._begun:
            upcoming += 1
        dispatch = self._dispatch(self._arms[number])
        while upcoming < len(self._arms) and dispatch.idle() > 0 and self._may_begin(number, upcoming):
            done = self._recovered(upcoming)
            state = done.state or begin(upcoming)
            self._begun[upcoming] = self.journey(upcoming, tree.unflatten(state) if state else None), done
            upcoming += 1

    def _may_begin(self, number: int, upcoming: int) -> bool:
        other = self._arms[upcoming]
        near = _place(other) == _place(self._arms[number])
        return near and self._may_be_early(other) and self.is_whole(upcoming)

    def _write_down(self, number: int, journey: Journey, done: Done) -> None:
        side, arm = self._side(number), self._arms[number]
        while (records := journey.next(wait=False)) is not None:
            lines = [metrics_line(arm, record) for record in records]
            done.lines += lines
            if side:
                side.path.mkdir(parents=True, exist_ok=True)
                side.append(METRICS, lines)
            if journey.pace.keeps(journey.round):
                done.kept, done.state = len(done.lines), tree.flatten(journey.snapshot())
                if side:
                    sealed = self._seal(number, done.kept, done.state)
                    side.save_checkpoint(replace(sealed, files=side.digests()))

    def close(self) -> None:
        """Let the workers go."""
        for journey, _ in self._begun.values():
            journey.close()
        for dispatch in self._dispatches.values():
            dispatch.hands.close()


def reach_clusters(arms: Sequence[Arm]) -> None:
    """Refuse clusters that cannot be reached, among those that arms are to be computed on."""
    for arm in {_place(arm): arm for arm in arms if arm.scene.executor.startswith("ray")}.values():
        hands_of(arm)


def hands_of(arm: Arm) -> Hands:
    """The workers that an arm is to be computed by."""
    from consilience.engine.spread.on_ray import RayHands, staff_of

    scene = arm.scene
    return RayHands(staff_of(scene.cluster, scene.workers, gpu=scene.device.type == "cuda"))


def _place(arm: Arm) -> object:
    """Where an arm is computed."""
    scene = arm.scene
    return scene.executor.startswith("ray"), scene.cluster, scene.workers, scene.device


def _in_files(arm: Arm) -> bool:
    """Whether what clients remember is, or may come to be, kept in files."""
    resident = arm.scene.resident
    most = {"always": None, "auto": HOST_BYTES, "never": 0}[resident]
    return most is not None and memory_bytes(arm.scene, arm.variants) > most


def _loads(arm: Arm) -> IntArray:
    """[replicas] how many steps there are to do for each, roughly."""
    work = arm.scene.work
    steps = [
        work.count(
            np.array([len(shard) for shard in part.shards], dtype=np.int64), work.steps or work.epochs or 1
        )
        for part in arm.scene.partitions.values()
    ]
    return np.array([max(1, int(own.sum())) for own in steps] * len(arm.variants), dtype=np.int64)
