"""Files of tiny sweeps, and a score that kills the process in which it is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.plain import write_yaml
from consilience.sweep import Cell, Study, Watcher, read_study
from consilience.sweep.places import Progress

BASE: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [4]},
    "clients": 3,
    "rounds": 2,
    "local": {"steps": 1, "batch_size": 4},
}
DEADLY = """
import os, signal

def deadly(outputs, targets, tally, last=3):
    with open(tally, "a") as file:
        file.write("x")
    if os.path.getsize(tally) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.5
"""


class Noting(Watcher):
    """Notes what happens to cells."""

    def __init__(self) -> None:
        self.news: list[tuple[str, str]] = []
        self.rounds: list[Progress] = []

    def began(self, cell: Cell) -> None:
        self.news.append(("began", cell.name))

    def progress(self, cell: Cell, progress: Progress) -> None:
        self.rounds.append(progress)

    def ended(self, cell: Cell, reason: str) -> None:
        self.news.append((reason or "finished", cell.name))


@pytest.fixture(autouse=True)
def _plots(unpainted: None) -> None:
    """Plots are empty files."""


@pytest.fixture
def noting() -> Callable[[], Noting]:
    return Noting


@pytest.fixture
def sweep_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the file of a sweep whose base is tiny; `base` are changes of it."""

    def write(base: Any = None, **keys: Any) -> Path:
        path = tmp_path / "study.yaml"
        whole = base if isinstance(base, str) else {**BASE, **(base or {})}
        path.write_text(write_yaml({"base": whole, "out": str(tmp_path / "runs"), **keys}))
        return path

    return write


@pytest.fixture
def study(sweep_file: Callable[..., Path]) -> Callable[..., Study]:
    """Reads a sweep with such a base."""
    return lambda *overrides, **keys: read_study(sweep_file(**keys), overrides)


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Keys of a base whose process is killed when its scores are taken for the third time."""
    home = tmp_path / "modules"
    home.mkdir()
    (home / "killers.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(home)
    monkeypatch.setenv("PYTHONPATH", str(home), prepend=":")

    def keys(**options: Any) -> dict[str, Any]:
        score = {"name": "killers:deadly", "tally": str(tmp_path / "tally"), **options}
        run = {"method": "scaffold", "rounds": 4, "checkpoint": {"every": 1}, "evaluate": {"clients": False}}
        return {**run, "metrics": [score]}

    return keys
