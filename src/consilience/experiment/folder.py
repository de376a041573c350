"""The files of a run: written so that a kill at any instant loses nothing that was reported as saved."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import yaml
from torch import Tensor

from consilience import wire
from consilience.errors import UserError, unknown
from consilience.plain import write_yaml
from consilience.problems import PROBLEMS, Metric
from consilience.tracking import tensorboard

Existing = Literal["refuse", "overwrite", "resume"]

CONFIG, METRICS, CLIENTS, SUMMARY = "config.yaml", "metrics.jsonl", "clients.jsonl", "summary.json"
CHECKPOINT, PARTITIONS, PLAN = "checkpoint.safetensors", "partitions.json", "plan.json"
CHECKPOINT_FIELDS = ("arm", "metrics", "clients", "config", "model", "rounds", "base")
STATES, WEIGHTS, MEMORIES = "states", "weights", "memories"
"""Whole states of methods that have ended, from which a run goes on; plain models; what clients remember."""
TRACKING = "tracking.json"
"""What tells a run apart for trackers."""
SWEEP_PLOT, NODE_PLOT, MAP, COORDINATE_PLOT = "sweep.png", "nodes.png", "map.png", "coordinates.png"
PLOT_ENDINGS = (".png", ".pdf", ".svg")


def plots_of(metric: Metric) -> tuple[str, ...]:
    """The plots of a run, that of its metric first; others are there for a sweep or a graph only."""
    return f"{metric.name}.png", SWEEP_PLOT, NODE_PLOT, MAP, COORDINATE_PLOT


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands."""

    arm: int
    """The method (of a setting) that runs; those before it are complete."""
    metrics: int
    """Lines of the metrics that belong to it."""
    clients: int
    """Lines of the clients' results that belong to it."""
    state: dict[str, Tensor]
    config: str = ""
    """A digest of the configuration, but for the number of rounds."""
    model: str = ""
    """A digest of the architecture and of the parameters that are not trained, which it does not hold."""
    rounds: int = 0
    """How many rounds the run is to have."""
    base: int = 0
    """How many it had before it was given more: arms that have no state here begin with theirs of then."""


PLACE = ("workers", "cluster")
"""The keys of a configuration that say where a run is computed, which may change before it ends."""


def fixed_sections(written: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sections of a written configuration (itself, and those that it compares), but for the place."""
    sections = [{**written, "compare": None}, *(written.get("compare") or ())]
    return [{key: value for key, value in section.items() if key not in PLACE} for section in sections]


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, config: Mapping[str, Any], existing: Existing) -> None:
        """Make the folder, or check what is there. An existing run is never overwritten unless asked."""
        if existing not in get_args(Existing):
            raise unknown("value of existing", existing, get_args(Existing))
        written = write_yaml(config)
        there = self.path / CONFIG
        if there.exists() and existing == "refuse":
            raise UserError(
                f"{self.path} holds a run already; continue it with `consilience resume {self.path}`, "
                "choose another name=..., or pass --overwrite"
            )
        if there.exists() and existing == "resume":
            old, new = yaml.safe_load(there.read_text()), yaml.safe_load(written)
            if fixed_sections(old) != fixed_sections(new):
                raise UserError(
                    f"{self.path} was made with another configuration, so it cannot be continued with this"
                )
            if old != new:
                self.write_config(config)
            return
        if existing == "overwrite":
            self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_config(config)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration, atomically."""
        written = write_yaml(config)
        atomic_write(self.path / CONFIG, written.encode())

    def _clear(self) -> None:
        """Delete the files of an earlier run, and nothing else that may lie there."""
        # It may have been about another problem.
        plots = [name for problem in PROBLEMS.values() for name in plots_of(problem.metric)]
        plots = [str(Path(name).with_suffix(ending)) for name in plots for ending in PLOT_ENDINGS]
        for name in (CHECKPOINT, SUMMARY, METRICS, CLIENTS, PARTITIONS, PLAN, TRACKING, *plots, CONFIG):
            (self.path / name).unlink(missing_ok=True)
        for name in (STATES, WEIGHTS, MEMORIES, tensorboard.FOLDER):
            shutil.rmtree(self.path / name, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within it, no other process can write to this run."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is working on {self.path}") from None
            yield

    def append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to a .jsonl file; they are on disk when this returns."""
        with (self.path / name).open("a") as handle:
            handle.writelines(json_line(line) + "\n" for line in lines)
            handle.flush()
            os.fsync(handle.fileno())

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of a .jsonl file; a torn last line is left out."""
        path = self.path / name
        if not path.exists():
            return []
        try:
            lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}") from None
        if not all(isinstance(line, dict) for line in lines):
            raise UserError(f"{path} is damaged: a line is not an object")
        return lines

    def truncate(self, name: str, count: int) -> list[dict[str, Any]]:
        """Keep the first `count` lines, and give them."""
        path = self.path / name
        if count and not path.exists():
            raise UserError(f"{path} is missing")
        lines = self.read_lines(name)
        if len(lines) < count:
            raise UserError(f"{path} is damaged: {len(lines)} lines, but the checkpoint knows {count}")
        if path.exists():
            whole = path.read_bytes().split(b"\n")
            atomic_write(path, b"".join(line + b"\n" for line in whole[:count]))
        return lines[:count]

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, atomically."""
        fields = {name: str(getattr(checkpoint, name)) for name in CHECKPOINT_FIELDS}
        atomic_write(self.path / CHECKPOINT, wire.encode_tensors(checkpoint.state, fields))

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, its digest checked; None where there is none yet."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            state, fields = wire.decode_tensors(path.read_bytes())
            arm, metrics, clients = (int(fields[name]) for name in ("arm", "metrics", "clients"))
            rounds, base = (int(fields.get(name, 0)) for name in ("rounds", "base"))
            return Checkpoint(arm, metrics, clients, state, fields["config"], fields["model"], rounds, base)
        except (wire.WireError, KeyError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}") from None

    def save_state(self, label: str, rounds: int, tensors: dict[str, Tensor]) -> None:
        """Keep a method's whole state at the end of a run of so many rounds, from which it can go on."""
        (self.path / STATES).mkdir(exist_ok=True)
        atomic_write(self._state(label, rounds), wire.encode_tensors(tensors, {"label": label}))

    def load_state(self, label: str, rounds: int) -> dict[str, Tensor]:
        """A method's whole state at the end of a run of so many rounds."""
        path = self._state(label, rounds)
        if not path.exists():
            raise UserError(f"{path} is missing, so this run cannot go on")
        try:
            return wire.decode_tensors(path.read_bytes())[0]
        except wire.WireError as error:
            raise UserError(f"{path} is damaged: {error}") from None

    def memories(self, label: str) -> Path:
        """Where the memories of a method's clients lie if they are kept in files, but for their endings."""
        return self.path / MEMORIES / quote(label, safe="=,+")

    def forget_states(self, rounds: int) -> None:
        """Delete the states of shorter runs, from which this one has gone on."""
        for path in (self.path / STATES).glob("*.safetensors"):
            if not path.stem.endswith(f"@{rounds}"):
                path.unlink()

    def replace_lines(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace a .jsonl file, atomically."""
        atomic_write(self.path / name, "".join(json_line(line) + "\n" for line in lines).encode())

    def _state(self, label: str, rounds: int) -> Path:
        return self.path / STATES / f"{quote(label, safe='=,+')}@{rounds}.safetensors"

    def settle(self, name: str, value: object, *, resumed: bool) -> None:
        """Write a JSON file that never changes; a resumed run must have the same."""
        path = self.path / name
        if resumed and path.exists() and json.loads(path.read_text()) != json.loads(json.dumps(value)):
            raise UserError(
                f"the data, their split or the graph are not those of {path}, so this run cannot go on; "
                "where it started from a file (init), that must be the same, too"
            )
        self.write_json(name, value)

    def write_json(self, name: str, value: object) -> None:
        """Replace a JSON file, atomically."""
        atomic_write(self.path / name, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def json_line(line: Mapping[str, Any]) -> str:
    """One line of JSON; numbers that are not finite become null."""
    return json.dumps(finite_line(line), allow_nan=False)


def finite_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """The line with every number that is not finite replaced by None."""
    return {key: _finite(value) for key, value in line.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return finite_line(value)
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file so that it is always either the old one or the new one, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was saved before is still there"
        ) from None
