"""One cell of a sweep: its configuration, its folder, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from consilience.config.config import Config, read_config
from consilience.errors import UserError
from consilience.experiment.folder import CONFIG, RunFolder, atomic_write
from consilience.experiment.lines import finite_line
from consilience.experiment.result import Result
from consilience.experiment.sealing import read_sealed
from consilience.report.summary import runs_by_method, summarise

CELL, OUTCOME, ERROR = "cell.json", "outcome.json", "error.txt"
"""Files beside those of the run: what the cell is, what came out, and why it failed."""
ASIDE = frozenset({"name", "out", "note", "tracking"})
"""Keys that change nothing about what comes out."""

Stage = Literal["new", "begun", "failed", "finished"]


@dataclass(frozen=True)
class Cell:
    """A configuration, and what tells it from the others of its sweep."""

    name: str
    varied: dict[str, object]
    """The values that it has of its own, by dotted key."""
    values: dict[str, Any]
    """The keys and values of its configuration that were given."""
    written: dict[str, Any]
    """The whole configuration as plain values, but for what changes nothing about what comes out."""
    path: Path
    """Its folder, which is a run's."""
    carried: tuple[str, ...] = ()
    """The keys whose values are lists because the run computes all of them side by side."""

    def config(self) -> Config:
        """The configuration, read anew: a data set that it names may be large, so it is not kept."""
        return read_config(self.values, f"cell {self.name}")

    @property
    def stage(self) -> Stage:
        """How far it is, as its folder says."""
        if (self.path / OUTCOME).exists():
            return "finished"
        if (self.path / ERROR).exists():
            return "failed"
        return "begun" if (self.path / CONFIG).exists() else "new"

    @property
    def changed(self) -> tuple[str, object, object] | None:
        """The first key in which a run that lies here differs, with what it was and what it is now."""
        if not (self.path / CONFIG).exists():
            return None
        there = _read(self.path / CELL)
        if there is None:
            raise UserError(f"{self.path} holds a run that is none of this sweep; choose another name=...")
        return _difference(there.get("config", {}), self.written)

    def check(self) -> None:
        """Refuse a folder that holds a run of another configuration."""
        if self.changed is not None:
            key, was, now = self.changed
            raise UserError(
                f"cell {self.name} was made with another configuration ({key} was {was!r}, now it is "
                f"{now!r}); restore it, choose another name=..., or pass --overwrite to run such cells anew"
            )

    def clear(self) -> None:
        """Delete what a cell of another configuration has left here."""
        folder = RunFolder(self.path)
        with folder.locked():
            for name in (OUTCOME, ERROR):
                (self.path / name).unlink(missing_ok=True)
            folder.prepare(self.config().resolved().written(), "overwrite")
            folder.write_sealed(CELL, self._identity())

    def begin(self) -> None:
        """Write down what the cell is."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / CONFIG).exists():
            RunFolder(self.path).write_sealed(CELL, self._identity())
        (self.path / ERROR).unlink(missing_ok=True)

    def _identity(self) -> dict[str, Any]:
        return {"varied": self.varied, "config": self.written}

    def fail(self, reason: str, trace: str) -> None:
        """Write down why it came to nothing: a line, and where in the code that was."""
        atomic_write(self.path / ERROR, f"{reason}\n{trace}".encode())

    def conclude(self, result: Result) -> None:
        """Write down what came out; from now on the cell is finished."""
        RunFolder(self.path).write_sealed(OUTCOME, finite_line(outcome_of(result)))

    def outcome(self) -> dict[str, Any] | None:
        """What came out; None where the cell is not finished."""
        return _read(self.path / OUTCOME)

    @property
    def reason(self) -> str:
        """Why it failed, in one line; nothing where it did not."""
        path = self.path / ERROR
        return path.read_text().partition("\n")[0] if path.exists() else ""


def outcome_of(result: Result) -> dict[str, Any]:
    """The scores of a run at its end and at their best, by method and seed, as plain values."""
    rows = []
    for (setting, method), by_seed in runs_by_method(result.records).items():
        seeds = {}
        for seed, run in by_seed.items():
            (one,) = summarise(list(run.values()), (), result.metric)
            seeds[str(seed)] = {
                "final": one.final_mean,
                "best": one.best_mean,
                "diverged": bool(one.diverged),
                "bytes_up": one.bytes_up,
                "bytes_down": one.bytes_down,
            }
        rows.append(
            {
                "setting": setting,
                "method": method,
                "swept": one.swept,
                "rounds": max(max(run) for run in by_seed.values()),
                "seeds": seeds,
            }
        )
    return {"metric": result.metric._asdict(), "digest": result.digest, "rows": rows}


def _read(path: Path) -> dict[str, Any] | None:
    return read_sealed(path) if path.exists() else None


def _difference(there: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, object, object] | None:
    """The first key in which two configurations differ, with both values; None where they are the same."""
    for key in {**wanted, **there}:
        was, now = there.get(key), wanted.get(key)
        if was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            inner = _difference(was, now)
            assert inner is not None
            return f"{key}.{inner[0]}", *inner[1:]
        return key, was, now
    return None
