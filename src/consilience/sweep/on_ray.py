"""Cells on a Ray cluster: one cell is one task, wherever there is room for it.

Nothing travels but configurations and news: results lie in the sweep's folder, which all nodes must share. A
task whose process or node dies is started again by Ray, and goes on from the cell's checkpoint.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.engine.spread.joining import join
from consilience.errors import UserError, described
from consilience.sweep.cells import Cell
from consilience.sweep.places import Place, Progress, Watcher, attempt

PAUSE = 0.5
"""Seconds between two looks at what cells say, and between two things that a cell says."""
RETRIES = 3
"""How often a cell is started again whose process has died."""

News = tuple[str, Progress | None]
"""The name of a cell, and how far it is; None where it has just begun."""


@dataclass(frozen=True)
class OnRay(Place):
    """A Ray cluster."""

    cluster: str = "auto"
    """Its address; `auto`: the one that runs here, or a new one; `local`: a new one."""
    cpus: float = 1
    """The cores that a cell takes."""
    gpus: float = 0
    """The GPUs that a cell takes; less than 1 where several share one."""

    def run(self, cells: Sequence[Cell], watcher: Watcher) -> None:
        if not cells:
            return
        ray, now, _ = join(self.cluster)
        try:
            self._check_room(ray)
            self._run(ray, cells, watcher)
        finally:
            if now:
                ray.shutdown()

    def _check_room(self, ray: Any) -> None:
        """Refuse a cell that no node could ever take: Ray would wait for one."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for key, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            most = max((node.get(key, 0) for node in nodes), default=0)
            if wanted > most:
                raise UserError(
                    f"{key.lower()}s: a cell takes {wanted:g}, and no node has more than {most:g}"
                )

    def _run(self, ray: Any, cells: Sequence[Cell], watcher: Watcher) -> None:
        board = ray.remote(_Board).options(num_cpus=0).remote()
        task = ray.remote(_task).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)
        by_name = {cell.name: cell for cell in cells}
        pending = {task.remote(cell, board, str(Path.cwd()), tuple(sys.path)): cell for cell in cells}

        def pass_on() -> None:
            for name, progress in ray.get(board.take.remote()):
                if progress is None:
                    watcher.began(by_name[name])
                else:
                    watcher.progress(by_name[name], progress)

        try:
            while pending:
                done, _ = ray.wait(list(pending), timeout=PAUSE)
                pass_on()
                for reference in done:
                    cell = pending.pop(reference)
                    watcher.ended(cell, _reason(ray, reference, cell))
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def _reason(ray: Any, reference: Any, cell: Cell) -> str:
    """Why a task's cell failed; nothing where it is finished."""
    try:
        reason = str(ray.get(reference))
    except ray.exceptions.RayError as error:
        reason = described(error)
        cell.begin()
        cell.fail(reason, "")
        return reason
    if not reason and cell.stage != "finished":
        return f"it is finished, but {cell.path} is not on a disk that this machine shares with its node"
    return reason


class _Board:
    """Where tasks leave news until somebody takes them."""

    def __init__(self) -> None:
        self._news: list[News] = []

    def tell(self, name: str, progress: Progress | None) -> None:
        self._news.append((name, progress))

    def take(self) -> list[News]:
        news, self._news = self._news, []
        return news


def _task(cell: Cell, board: Any, folder: str, modules: Sequence[str]) -> str:
    """Run a cell in a process of the cluster; see `attempt`."""
    if not cell.path.parent.is_dir():
        return f"{cell.path.parent} is not on a disk that all nodes of the cluster share"
    if Path(folder).is_dir():
        os.chdir(folder)  # paths in a configuration are meant from where the command was given
    sys.path += [path for path in modules if path not in sys.path]  # and so are modules of the user's own
    board.tell.remote(cell.name, None)
    said = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said > PAUSE:
            said = time.monotonic()
            board.tell.remote(cell.name, progress)

    return attempt(cell, tell)
