"""A run that is killed while it writes, or whose disk is full, goes on as if nothing had happened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.config.config import Config
from consilience.errors import UserError
from consilience.experiment import drawing
from consilience.experiment import execution as experiment
from consilience.experiment import folder as run_folder
from consilience.experiment.folder import RunFolder
from consilience.experiment.lines import json_line

FRAGILE = {
    # Both methods keep memories; not everybody takes part, so some memories exist and others do not.
    "method": ["scaffold", "fedcurv"],
    "clients": 3,
    "participation": 2,
    "failure_rate": 0.2,
    "seeds": [0, 1],
    "rounds": 4,
    "checkpoint": {"every": 2},
}
WRITES = 21
"""Configuration, plan, partitions, eight for each method, the last checkpoint once more, and the summary.

The picture is left out.
"""


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


class _Killer:
    """Counts writes and dies in the middle of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deadly: int | None) -> None:
        self.count, self.deadly = 0, deadly
        self._write, self._append = run_folder.atomic_write, RunFolder.append

        def append(folder: RunFolder, name: str, some: list[dict[str, Any]]) -> None:
            self.append(folder, name, some)

        monkeypatch.setattr(run_folder, "atomic_write", self.atomic_write)
        monkeypatch.setattr(RunFolder, "append", append)
        monkeypatch.setattr(drawing, "score_plot", lambda records, metric, path, title: path.touch())

    def _dies(self) -> bool:
        self.count += 1
        return self.count == self.deadly

    def atomic_write(self, path: Path, data: bytes) -> None:
        if self._dies():
            path.with_name(path.name + ".tmp").write_bytes(data[: len(data) // 2])
            raise Killed
        self._write(path, data)

    def append(self, folder: RunFolder, name: str, some: list[dict[str, Any]]) -> None:
        if self._dies():
            text = "".join(json_line(line) + "\n" for line in some)
            with (folder.path / name).open("a") as handle:
                handle.write(text[: 2 * len(text) // 3])
            raise Killed
        self._append(folder, name, some)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
    configure: Callable[..., Config],
    harvest: Callable[[Path], dict[str, Any]],
) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        killer = _Killer(patch, None)
        experiment.run(configure(**FRAGILE), folder=RunFolder(path))
    assert killer.count == WRITES
    return harvest(path)


@pytest.mark.parametrize("deadly", range(1, WRITES + 1))
def test_killed_in_the_middle_of_any_write(
    deadly: int,
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configure: Callable[..., Config],
    harvest: Callable[[Path], dict[str, Any]],
):
    folder = RunFolder(tmp_path / "run")
    config = configure(**FRAGILE)
    with monkeypatch.context() as patch:
        _Killer(patch, deadly)
        with pytest.raises(Killed):
            experiment.run(config, folder=folder)
    with monkeypatch.context() as patch:
        _Killer(patch, None)
        experiment.run(config, folder=folder, existing="resume")
    assert harvest(folder.path) == undisturbed


def test_killed_again_and_again(
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configure: Callable[..., Config],
    harvest: Callable[[Path], dict[str, Any]],
):
    folder = RunFolder(tmp_path / "run")
    config = configure(**FRAGILE)
    attempts = 0
    while not (folder.path / "summary.json").exists():
        attempts += 1
        with monkeypatch.context() as patch:
            _Killer(patch, 10)
            try:
                experiment.run(config, folder=folder, existing="resume")
            except Killed:
                continue
    assert attempts >= 3
    assert harvest(folder.path) == undisturbed


class _Disk:
    """A disk that has room for some more writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 0
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, handle: int) -> None:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        self._sync(handle)


def test_a_full_disk_loses_nothing(
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configure: Callable[..., Config],
    harvest: Callable[[Path], dict[str, Any]],
):
    """The disk fills up at several points; each time there is room again the run goes on."""
    folder = RunFolder(tmp_path / "run")
    config = configure(**FRAGILE)
    monkeypatch.setattr(drawing, "score_plot", lambda records, metric, path, title: path.touch())
    disk = _Disk(monkeypatch)
    for room in (0, 5, 9, 14):
        disk.room = room
        with pytest.raises((OSError, UserError), match="No space left on device"):
            experiment.run(config, folder=folder, existing="resume")
        folder.load_checkpoint()  # whole, or not there yet
    disk.room = 1000
    experiment.run(config, folder=folder, existing="resume")
    assert harvest(folder.path) == undisturbed
