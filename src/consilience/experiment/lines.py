"""Files of JSON lines: how lines are written, and what is said of those that are not as they were."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import DamageError
from consilience.experiment.sealing import digest_of_bytes


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


def jsonl(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Lines of JSON as the bytes of a file."""
    return "".join(json_line(line) + "\n" for line in lines).encode()


def parsed(path: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The objects in some lines of a file."""
    found = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DamageError(f"{path} is damaged: line {number}: {error}") from None
        if not isinstance(value, dict):
            raise DamageError(f"{path} is damaged: line {number} is not an object")
        found.append(value)
    return found


def confirmed(path: Path, count: int, digests: Sequence[str] | None) -> bytes:
    """The first lines of a file, which must have one of some digests, if there are any."""
    if count and not path.exists():
        raise DamageError(f"{path} is missing")
    whole = path.read_bytes().split(b"\n") if path.exists() else [b""]
    if len(whole) - 1 < count:
        raise DamageError(f"{path} is damaged: {len(whole) - 1} lines, but the checkpoint knows {count}")
    kept = b"".join(line + b"\n" for line in whole[:count])
    if digests is not None and digest_of_bytes(kept) not in digests:
        raise DamageError(not_those(path, kept, "that the checkpoint confirms"))
    return kept


def not_those(path: Path, data: bytes, which: str) -> str:
    """What to say about lines that have another digest; a line that no run writes is named."""
    lines = data.split(b"\n")[:-1]
    for number, (line, value) in enumerate(zip(lines, parsed(path, lines), strict=True), 1):
        if json_line(value).encode() != line:
            return f"{path} is damaged: line {number} is not as a run writes it"
    return f"{path} is damaged or was edited: its {len(lines)} lines are not those {which}"
