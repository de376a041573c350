"""Files that prove that they are as they were written: a digest of what they hold stands in them.

That finds damage and thoughtless edits. It is no signature: whoever wants to can write another digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from consilience.errors import DamageError

SEAL = "sha256"
"""The key of a JSON file's own digest."""
FOOTER = "# sha256 "
"""What stands before the digest in the last line of a text in which that is a comment."""


class Digest(Protocol):
    """A digest that grows with what it is of."""

    def update(self, data: bytes, /) -> None:
        """Go on with more bytes."""

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a digest of itself."""
    return {**value, SEAL: _digest(value)}


def read_sealed(path: Path) -> dict[str, Any]:
    """The object in a sealed JSON file, without its seal."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DamageError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise DamageError(f"{path} is damaged: it is not an object")
    seal = found.pop(SEAL, None)
    if seal != _digest(found):
        raise DamageError(f"{path} is damaged: its digest is not that of what it holds")
    return found


def _digest(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(value))  # as a file has it: keys are text, tuples are lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def with_footer(text: str) -> bytes:
    """A text with its digest as a comment at the end."""
    return f"{text}{FOOTER}{digest_of_bytes(text.encode())}\n".encode()


def has_footer(data: bytes) -> bool:
    """Whether a text ends with its digest."""
    text, mark, digest = data.rpartition(FOOTER.encode())
    return bool(mark) and digest == f"{digest_of_bytes(text)}\n".encode()


def digest_of_bytes(data: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
