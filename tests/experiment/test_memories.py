"""Runs whose clients' memories are kept in files end as those with memories in memory do, killed or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import consilience as cs
from consilience.config.config import Config
from consilience.engine.rounds import slots
from consilience.errors import UserError
from consilience.experiment import execution as experiment
from consilience.experiment import folder as run_folder
from consilience.experiment.folder import RunFolder

SETTING: dict[str, Any] = {
    "method": ["scaffold", "fedcurv"],
    "clients": 5,
    "participation": 2,
    "failure_rate": 0.2,
    "rounds": 5,
    "checkpoint": {"every": 2},
    "memories": {"resident": "never"},
}


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, configure: Callable[..., Config], harvest) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("runs") / "run"
    experiment.run(configure(**SETTING), folder=RunFolder(path))
    return harvest(path)


def test_results_are_those_of_memories_that_are_held(undisturbed, configure):
    held = experiment.run(configure(**{**SETTING, "memories": {"resident": "always"}}))
    assert held.digest == undisturbed["digest"]


@pytest.mark.parametrize("deadly", range(1, 17, 3))
def test_killed_while_memories_are_written(deadly, undisturbed, tmp_path, monkeypatch, configure, harvest):
    folder, config, count = RunFolder(tmp_path / "run"), configure(**SETTING), 0

    def torn(file: int, views: Any, at: int) -> int:
        nonlocal count
        count += 1
        if count == deadly:
            write(file, views[:1], at)
            raise Killed
        return write(file, views, at)

    write = slots.os.pwritev
    with monkeypatch.context() as patch:
        patch.setattr(slots.os, "pwritev", torn)
        with pytest.raises(Killed):
            experiment.run(config, folder=folder)
    experiment.run(config, folder=folder, existing="resume")
    assert harvest(folder.path) == undisturbed


def test_killed_before_a_checkpoint_is_in_its_place(undisturbed, tmp_path, monkeypatch, configure, harvest):
    folder, config = RunFolder(tmp_path / "run"), configure(**SETTING)

    def torn(path: Path, data: bytes) -> None:
        nonlocal written
        written += path.name == run_folder.CHECKPOINT
        if written == deadly:
            raise Killed
        write(path, data)

    write = run_folder.atomic_write
    for deadly in (1, 2):  # a checkpoint more each time
        written = 0
        with monkeypatch.context() as patch:
            patch.setattr(run_folder, "atomic_write", torn)
            with pytest.raises(Killed):
                experiment.run(config, folder=folder, existing="resume" if deadly > 1 else "refuse")
    experiment.run(config, folder=folder, existing="resume")
    assert harvest(folder.path) == undisturbed


def test_a_complete_run_gets_more_rounds(undisturbed, tmp_path, configure, blobs):
    folder = RunFolder(tmp_path / "run")
    experiment.run(configure(**{**SETTING, "rounds": 3}), folder=folder)
    longer = cs.resume(folder.path, rounds=5, data=blobs)
    assert longer.digest == undisturbed["digest"]


def test_a_run_whose_memories_are_gone_cannot_go_on(tmp_path, configure, stop_after):
    folder, config = RunFolder(tmp_path / "run"), configure(**SETTING)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(3))
    (file,) = (folder.path / run_folder.MEMORIES).iterdir()
    file.unlink()
    with pytest.raises(UserError, match="is missing, so this run cannot go on"):
        experiment.run(config, folder=folder, existing="resume")


def test_overwriting_a_run_takes_its_memories_away(tmp_path, configure):
    folder = RunFolder(tmp_path / "run")
    experiment.run(configure(**SETTING), folder=folder)
    experiment.run(configure(**{**SETTING, "method": "fedavg"}), folder=folder, existing="overwrite")
    assert not (folder.path / run_folder.MEMORIES).exists()
