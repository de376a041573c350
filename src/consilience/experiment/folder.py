"""The files of a run: written so that a kill at any instant loses nothing that was reported as saved."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from torch import Tensor

from consilience import tree, wire
from consilience.engine.rounds.memory_files import check_memories
from consilience.errors import DamageError, UserError, unknown
from consilience.experiment.checkpoint import Checkpoint
from consilience.experiment.lines import confirmed, jsonl, not_those, parsed
from consilience.experiment.sealing import (
    Digest,
    digest_of_bytes,
    has_footer,
    read_sealed,
    sealed,
    with_footer,
)
from consilience.plain import read_yaml, write_yaml
from consilience.problems import PROBLEMS, Metric
from consilience.tracking import tensorboard

Existing = Literal["refuse", "overwrite", "resume"]

CONFIG, METRICS, CLIENTS, SUMMARY = "config.yaml", "metrics.jsonl", "clients.jsonl", "summary.json"
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
"""Where a run stands, and where it stood when that was written the time before."""
PARTITIONS, PLAN = "partitions.json", "plan.json"
UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""What a system says where nothing can be written."""
STATES, WEIGHTS, MEMORIES = "states", "weights", "memories"
"""Whole states of methods that have ended, from which a run goes on; plain models; what clients remember."""
EARLY = "early"
"""Lines and checkpoints of methods that were begun before their turn."""
TRACKING = "tracking.json"
"""What tells a run apart for trackers."""
REPORT = "report.html"
"""The page about a run, where it was asked for."""
SWEEP_PLOT, NODE_PLOT, MAP, COORDINATE_PLOT = "sweep.png", "nodes.png", "map.png", "coordinates.png"
PLOT_ENDINGS = (".png", ".pdf", ".svg")


def plots_of(metric: Metric) -> tuple[str, ...]:
    """The plots of a run, that of its metric first; others are there for a sweep or a graph only."""
    return f"{metric.name}.png", SWEEP_PLOT, NODE_PLOT, MAP, COORDINATE_PLOT


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
        self.read_only = False
        """Whether nothing can be written there, as was found when it was locked."""
        self._lines: dict[str, Digest] = {}
        """The digests of files of lines, which grow with them."""
        self._files: dict[str, str] = {}
        """The digests of other files that checkpoints count on."""

    def prepare(self, config: Mapping[str, Any], existing: Existing) -> None:
        """Make the folder, or check what is there. An existing run is never overwritten unless asked."""
        if existing not in get_args(Existing):
            raise unknown("value of existing", existing, get_args(Existing))
        there = self.path / CONFIG
        if there.exists() and existing == "refuse":
            raise UserError(
                f"{self.path} holds a run already; continue it with `consilience resume {self.path}`, "
                "choose another name=..., or pass --overwrite"
            )
        if there.exists() and existing == "resume":
            self.check_config()
            old = read_yaml(there.read_text(), str(there))
            new = read_yaml(write_yaml(config), str(there))
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
        atomic_write(self.path / CONFIG, with_footer(write_yaml(config)))

    def check_config(self) -> None:
        """Refuse a configuration that is not as the run wrote it."""
        path = self.path / CONFIG
        if not has_footer(path.read_bytes()):
            raise UserError(
                f"{path} is damaged or was edited: its digest, in its last line, is not that of what stands "
                "above it; restore it: a run that has begun takes no other configuration (more rounds or "
                f"other workers: `consilience resume {self.path} rounds=200`)"
            )

    def _clear(self) -> None:
        """Delete the files of an earlier run, and nothing else that may lie there."""
        # It may have been about another problem.
        plots = [name for problem in PROBLEMS.values() for name in plots_of(problem.metric)]
        plots = [str(Path(name).with_suffix(ending)) for name in plots for ending in PLOT_ENDINGS]
        files = (CHECKPOINT, PREVIOUS, SUMMARY, METRICS, CLIENTS, PARTITIONS, PLAN, TRACKING, REPORT, CONFIG)
        for name in (*files, *plots):
            (self.path / name).unlink(missing_ok=True)
        for name in (STATES, WEIGHTS, MEMORIES, EARLY, tensorboard.FOLDER):
            shutil.rmtree(self.path / name, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within it, no other process can write to this run; a run that has ended can be read anywhere."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / ".lock").open("w")
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            if not (self.path / SUMMARY).exists():
                raise UserError(f"cannot write to {self.path}: {error.strerror}") from None
            self.read_only = True
            yield
            return
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is working on {self.path}") from None
            yield

    def check_writable(self) -> None:
        """Refuse to go on with a run where nothing can be written."""
        if self.read_only:
            raise UserError(f"{self.path} cannot be written, so this run cannot go on there")

    @contextmanager
    def advised(self) -> Iterator[None]:
        """Within it, an error about a damaged file says how the run can go on all the same."""
        try:
            yield
        except DamageError as error:
            raise UserError(f"{error}; {self._way_on()}") from None

    def _way_on(self) -> str:
        """What can be done about a file that is damaged."""
        try:
            if self._sound_previous() is not None:
                return (
                    f"`consilience resume {self.path} --previous` goes on from the checkpoint before the last"
                )
        except (UserError, OSError):
            pass
        return (
            "there is no earlier checkpoint that what is left would fit: restore it from a copy, or begin "
            "anew with --overwrite"
        )

    def _sound_previous(self) -> Checkpoint | None:
        """The checkpoint before the last; an error where files are not those that it counts on."""
        checkpoint = self._read_checkpoint(PREVIOUS)
        if checkpoint is None:
            return None
        counts = {METRICS: checkpoint.metrics, CLIENTS: checkpoint.clients}
        for name, count in counts.items():
            confirmed(self.path / name, count, checkpoint.files.get(name))
        self.check_memories(checkpoint.name, checkpoint.state)
        for name, digests in checkpoint.files.items():
            if name.startswith(STATES):
                tensors, fields = self._read_state(self.path / name)
                if digest_of_bytes((self.path / name).read_bytes()) not in digests:
                    raise DamageError(f"{self.path / name} is not that of the checkpoint")
                self.check_memories(fields["label"], tensors)
        return checkpoint

    def append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to a .jsonl file; they are on disk when this returns."""
        data = jsonl(lines)
        with (self.path / name).open("ab") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        self._lines.setdefault(name, hashlib.sha256()).update(data)

    def read_lines(self, name: str, digest: str | None = None) -> list[dict[str, Any]]:
        """The lines of a .jsonl file, which must have a digest where one is given; a torn one is left out."""
        path = self.path / name
        data = path.read_bytes() if path.exists() else b""
        if digest not in (None, digest_of_bytes(data)):
            raise DamageError(not_those(path, data, "that the run ended with"))
        return parsed(path, data.split(b"\n")[:-1])

    def truncate(self, name: str, count: int, digests: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Keep the first `count` lines, and give them; with digests, they must have one of these."""
        path = self.path / name
        kept = confirmed(path, count, digests)
        lines = parsed(path, kept.split(b"\n")[:-1])
        if path.exists() and path.stat().st_size != len(kept):
            atomic_write(path, kept)
        self._lines[name] = hashlib.sha256(kept)
        return lines

    def digests(self) -> dict[str, list[str]]:
        """The digests of all that a checkpoint counts on, as it is now."""
        lines = {name: [known.hexdigest()] for name, known in self._lines.items()}
        return {**lines, **{name: [digest] for name, digest in self._files.items()}}

    def final_digests(self) -> dict[str, str]:
        """The digests of the files about which a run's end says what they are, by which readers know them."""
        paths = [self.path / name for name in (CONFIG, METRICS, CLIENTS, PARTITIONS, PLAN)]
        return {path.name: digest_of_bytes(path.read_bytes()) for path in paths if path.exists()}

    def altered(self) -> list[str]:
        """What is wrong with files of a run that has ended: those that are no longer as it left them."""
        if not (self.path / SUMMARY).exists():
            return []
        try:
            left, now = read_sealed(self.path / SUMMARY)["files"], self.final_digests()
        except (UserError, OSError) as error:
            return [str(error)]
        return [
            f"{self.path / name} is not as the run left it" for name in left if left[name] != now.get(name)
        ]

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, atomically; the one before stays beside it."""
        self.check_writable()
        path = self.path / CHECKPOINT
        if path.exists():
            path.replace(self.path / PREVIOUS)  # which counts until the new one is there
        atomic_write(path, checkpoint.encoded())

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, its digest checked; None where there is none yet."""
        found = self._read_checkpoint(CHECKPOINT)
        return self._read_checkpoint(PREVIOUS) if found is None else found

    def _read_checkpoint(self, name: str) -> Checkpoint | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            return Checkpoint.decoded(path.read_bytes())
        except (wire.WireError, KeyError, ValueError) as error:
            raise DamageError(f"{path} is damaged: {error}") from None

    def check_origin(self, checkpoint: Checkpoint, config: str, model: str) -> None:
        """Refuse to go on with another configuration or model than those whose digests are given."""
        if checkpoint.config != config:
            raise UserError(f"{self.path} was made with another configuration; restore its {CONFIG}")
        if checkpoint.model != model:
            raise UserError(
                f"{self.path} was made with another model: its layers, or the weights that are not "
                "trained, differ from this one's"
            )

    def step_back(self) -> None:
        """Let the checkpoint before the last take its place."""
        self.check_writable()
        if self._sound_previous() is None:  # nothing is replaced by what would not help
            raise UserError(f"{self.path} has no checkpoint before the last: there is no {PREVIOUS}")
        (self.path / PREVIOUS).replace(self.path / CHECKPOINT)

    def recall(self, checkpoint: Checkpoint) -> None:
        """Count on the files that a checkpoint counts on."""
        whole = {name: one for name, one in checkpoint.files.items() if name not in (METRICS, CLIENTS)}
        self._files = {name: digest for name, (digest, *_) in whole.items()}

    def save_state(self, label: str, rounds: int, tensors: dict[str, Tensor]) -> None:
        """Keep a method's whole state at the end of a run of so many rounds, from which it can go on."""
        (self.path / STATES).mkdir(exist_ok=True)
        path, data = self._state(label, rounds), wire.encode_tensors(tensors, {"label": label})
        atomic_write(path, data)
        self._files[f"{STATES}/{path.name}"] = digest_of_bytes(data)

    def load_state(self, label: str, rounds: int) -> dict[str, Tensor]:
        """A method's whole state at the end of a run of so many rounds."""
        path = self._state(label, rounds)
        tensors, fields = self._read_state(path)
        if fields.get("label") != label:
            raise DamageError(f"{path} is that of another method")
        return tensors

    def _read_state(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors of a state, and what stands beside them."""
        if not path.exists():
            raise DamageError(f"{path} is missing, so this run cannot go on")
        try:
            return wire.decode_tensors(path.read_bytes())
        except wire.WireError as error:
            raise DamageError(f"{path} is damaged: {error}") from None

    def memories(self, label: str) -> Path:
        """Where the memories of a method's clients lie if they are kept in files, but for their endings."""
        return self.path / MEMORIES / quote(label, safe="=,+")

    def check_memories(self, label: str, state: dict[str, Tensor]) -> None:
        """Refuse files of memories that do not hold what a state of a method counts on."""
        check_memories(tree.unflatten(state), self.memories(label))

    def early(self, label: str) -> RunFolder:
        """The lines and the checkpoint of a method that was begun before its turn, as those of a run."""
        return RunFolder(self.path / EARLY / quote(label, safe="=,+"))

    def forget_early(self, label: str) -> None:
        """Delete what was kept of a method before its turn."""
        shutil.rmtree(self.early(label).path, ignore_errors=True)
        if (self.path / EARLY).exists() and not any((self.path / EARLY).iterdir()):
            (self.path / EARLY).rmdir()

    def forget_states(self, rounds: int) -> None:
        """Delete the states of shorter runs, from which this one has gone on."""
        for name in [one for one in self._files if one.startswith(STATES)]:
            if not name.endswith(f"@{rounds}.safetensors"):
                del self._files[name]
                (self.path / name).unlink(missing_ok=True)  # a kill may have come before

    def replace_lines(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace a .jsonl file, atomically."""
        data = jsonl(lines)
        atomic_write(self.path / name, data)
        self._lines[name] = hashlib.sha256(data)

    def _state(self, label: str, rounds: int) -> Path:
        return self.path / STATES / f"{quote(label, safe='=,+')}@{rounds}.safetensors"

    def settle(self, name: str, value: object, checkpoint: Checkpoint | None) -> None:
        """Write a JSON file that never changes; a run that goes on must have the one of its checkpoint."""
        path, data = self.path / name, _json(value)
        digest = digest_of_bytes(data)
        if checkpoint is not None and digest not in checkpoint.files.get(name, ()):
            raise UserError(
                f"the data, their split or the graph are not those of {path}, so this run cannot go on; "
                "where it started from a file (init), that must be the same, too"
            )
        if checkpoint is not None and path.exists() and path.read_bytes() != data:
            raise UserError(
                f"{path} is damaged: it is not what the checkpoint confirms; "
                "delete it, and it is written again"
            )
        self._files[name] = digest
        if not self.read_only:
            atomic_write(path, data)

    def write_json(self, name: str, value: object) -> None:
        """Replace a JSON file, atomically."""
        atomic_write(self.path / name, _json(value))

    def write_sealed(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace a JSON file that proves that it is as it was written."""
        self.write_json(name, sealed(value))


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


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
