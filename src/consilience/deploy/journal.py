"""What a member of a federation writes down: how rounds went, what was refused, and how things stand."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.experiment.folder import atomic_write
from consilience.experiment.lines import finite_line, json_line

METRICS, AUDIT, STATUS = "metrics.jsonl", "audit.jsonl", "status.json"


@dataclass(frozen=True)
class Journal:
    """The files of one member, in a folder of its own.

    `metrics.jsonl` has a line for every round, `audit.jsonl` one for everything that was refused, with who is
    meant to have sent it and why, and `status.json` is how things stand, for whoever looks.
    """

    folder: Path
    run: str
    """What messages call the run."""
    member: str
    """Who writes: hub, or the number of a site or node."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def note(self, round_number: int, line: Mapping[str, Any]) -> None:
        """Write down how a round went."""
        self._append(METRICS, {"round": round_number, **line})

    def refuse(self, other: int | str, reason: str, round_number: int | None = None) -> None:
        """Write down that something was refused, and in which round, where that is known."""
        self._append(AUDIT, {"round": round_number, "from": str(other), "reason": reason})

    def stand(self, status: Mapping[str, Any]) -> None:
        """Write down how things stand, in place of how they stood."""
        whole = {"run": self.run, "member": self.member, "time": time.time(), **finite_line(status)}
        atomic_write(self.folder / STATUS, (json.dumps(whole, indent=1) + "\n").encode())

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        whole = {"time": time.time(), "run": self.run, "member": self.member, **line}
        with (self.folder / name).open("ab+") as file:
            # A line that a power cut has torn must not spoil the next one.
            torn = file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + f"{json_line(whole)}\n".encode())


def read_status(folder: Path) -> dict[str, Any] | None:
    """How things stand at a member; None where it has written nothing yet."""
    try:
        found: dict[str, Any] = json.loads((folder / STATUS).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal; one that is being written is not there yet."""
    try:
        text = path.read_text()
    except OSError:
        return []
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]
