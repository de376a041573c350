"""A file of JSON lines that somebody else is writing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tail:
    """What is added to a file of JSON lines, from one look to the next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] = (0, 0)
        self._at = 0
        self.damaged = 0
        """How many lines are no JSON objects."""

    @property
    def restarted(self) -> bool:
        """Whether the file is another than at the last look: what was read of it no longer holds."""
        try:
            found = self.path.stat()
        except OSError:
            return self._at > 0
        return self._at > 0 and ((found.st_dev, found.st_ino) != self._file or found.st_size < self._at)

    def forget(self) -> None:
        """Begin again with the first line."""
        self._at = self.damaged = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """The lines that are new; one that is being written is not there yet."""
        try:
            handle = self.path.open("rb")
        except OSError:
            return
        with handle:
            found = os.fstat(handle.fileno())
            self._file = found.st_dev, found.st_ino
            handle.seek(self._at)
            for line in handle:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    value = None
                if isinstance(value, dict):
                    yield value
                else:
                    self.damaged += 1


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is none, or something else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def written(path: Path) -> float | None:
    """When a file was last written, in seconds since 1970; None where it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
