"""Runs that are to be damaged, and what they leave behind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from consilience.api import load_model
from consilience.config.config import read_config
from consilience.experiment import Arm, Listener, execution, resume
from consilience.experiment.folder import CLIENTS, METRICS, SUMMARY, RunFolder
from consilience.experiment.reading import read_run
from scorecard.finding import demand
from scorecard.launching import Process, launcher

FRAGILE: dict[str, Any] = {
    # Two methods, one of which keeps memories; not everybody takes part, so some exist and others do not.
    "method": ["scaffold", "local"],
    "model": {"name": "mlp", "hidden": [8]},
    "clients": 4,
    "participation": 3,
    "failure_rate": 0.2,
    "rounds": 20,
    "seeds": [0, 1],
    "local": {"steps": 2, "batch_size": 8},
    "checkpoint": {"every": 4},
    "evaluate": {"every": 10},
    "device": "cpu",
}


def harvest(path: Path) -> dict[str, Any]:
    """Everything a run leaves behind, but times."""
    found: dict[str, Any] = {
        str(file.relative_to(path)): file.read_bytes()
        for kind in ("weights", "states")
        for file in sorted((path / kind).rglob("*.safetensors"))
    }
    for name in (METRICS, CLIENTS):
        records = [json.loads(line) for line in (path / name).read_text().splitlines()]
        # A digest of lines, where there is one, covers times.
        untimed = {"seconds", "digest"}
        found[name] = [{key: value for key, value in one.items() if key not in untimed} for one in records]
    found["digest"] = json.loads((path / SUMMARY).read_text())["digest"]
    return found


def gone_on(path: Path) -> dict[str, Any]:
    """What a run leaves behind that goes on to its end, if there is any left; all of it is read again."""
    resume(path)
    read_run(path)
    for model in (path / "weights").rglob("*.safetensors"):
        load_model(model)
    for state in (path / "states").glob("*.safetensors"):
        label, _, rounds = unquote(state.stem).rpartition("@")
        RunFolder(path).load_state(label, int(rounds))
    return harvest(path)


class Commands:
    """Command lines in processes of their own, in a folder.

    Args:
        folder: Where the configuration, the runs and what was said lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._count = folder, 0
        self.file = folder / "fragile.yaml"
        self.file.write_text(json.dumps(FRAGILE))  # which is YAML, too

    def start(self, *words: object, harm: Sequence[Any] | None = None) -> Process:
        """Start a command."""
        self._count += 1
        log = self.folder / f"{self._count}.log"
        return launcher().start("words", [str(word) for word in words], log, harm)

    def run(self, path: Path, *more: object, harm: Sequence[Any] | None = None) -> Process:
        """Start a run in a folder, or go on with the one that is there."""
        if (path / "config.yaml").exists():
            return self.start("resume", path, harm=harm)
        return self.start("run", self.file, f"out={path.parent}", f"name={path.name}", *more, harm=harm)

    def whole(self, path: Path, *more: object) -> dict[str, Any]:
        """What a run leaves behind that goes on to its end."""
        process = self.run(path, *more)
        code = process.ended()
        demand(code == 0, f"it ended with {code}: {process.err.read_text()[-300:]}")
        return harvest(path)


class _Stop(Listener):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def interrupted(path: Path) -> Path:
    """A run that was stopped in its second method, after a checkpoint, with all files that a run has."""
    changes = {
        "rounds": 4,
        "checkpoint": {"every": 2},
        "evaluate": {"every": 2},
        "memories": {"resident": "never"},  # in files of their own
    }
    try:
        execution.run(read_config({**FRAGILE, **changes}), folder=RunFolder(path), listener=_Stop(7))
    except KeyboardInterrupt:
        return path
    raise AssertionError("it was not stopped")


@contextmanager
def silent() -> Iterator[None]:
    """Within it, the package logs nothing."""
    logger = logging.getLogger("consilience")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def checkpoint_loads(path: Path) -> bool:
    """Whether a run has a checkpoint, the new or the previous one; one that is damaged is an error."""
    return RunFolder(path).load_checkpoint() is not None
