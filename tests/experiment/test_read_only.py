"""A run that has ended can be read where nothing can be written; others say why they cannot go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import consilience as cs
from consilience.config.config import Config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import Listener, resume
from consilience.experiment import execution as experiment
from consilience.experiment.drawing import redraw
from consilience.experiment.folder import RunFolder
from consilience.monitor.gathering import Folder

SETTING: dict[str, Any] = {
    "method": "scaffold",
    "memories": {"resident": "never"},
    "checkpoint": {"every": 1},
}


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the file system refuse all that would change it; root may write whatever permissions say."""
    opened = Path.open

    def only_read(path: Path, mode: str = "r", *given: Any, **options: Any) -> Any:
        if path.is_relative_to("/dev") or not set(mode) & set("wax+"):
            return opened(path, mode, *given, **options)
        return refuse()

    def protect() -> None:
        monkeypatch.setattr(Path, "open", only_read)
        for name in ("touch", "unlink", "rename", "replace", "write_text", "write_bytes"):
            monkeypatch.setattr(Path, name, refuse)

    return protect


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def finished(tmp_path: Path, configure: Callable[..., Config]) -> Iterator[experiment.Result]:
    result = experiment.run(configure(**SETTING), folder=RunFolder(tmp_path / "run"))
    before = content(tmp_path / "run")
    yield result
    assert content(tmp_path / "run") == before


def test_a_finished_run_can_be_read(
    finished: experiment.Result, protected: Callable[[], None], blobs: Dataset
):
    protected()
    again = resume(finished.folder, data=blobs)
    assert (again.digest, again.records) == (finished.digest, finished.records)
    assert again.table() == finished.table()
    assert cs.load_model(finished).state_dict().keys()
    assert Folder(finished.folder).offer().problems == []
    with pytest.raises(UserError, match="cannot be written, so this run cannot go on there"):
        resume(finished.folder, rounds=9, data=blobs)


def test_plots_of_a_finished_run_go_elsewhere(finished: experiment.Result, tmp_path: Path):
    assert redraw(finished.folder, to=tmp_path / "plots") == [tmp_path / "plots" / "accuracy.png"]
    assert (tmp_path / "plots" / "accuracy.png").exists()


def test_an_unfinished_run_says_why_it_cannot_go_on(
    tmp_path: Path,
    configure: Callable[..., Config],
    protected: Callable[[], None],
    stop_after: Callable[[int], Listener],
    blobs: Dataset,
):
    with pytest.raises(KeyboardInterrupt):
        experiment.run(configure(**SETTING), folder=RunFolder(tmp_path / "run"), listener=stop_after(2))
    protected()
    with pytest.raises(UserError, match=r"cannot write to .*run: Read-only file system"):
        resume(tmp_path / "run", data=blobs)
