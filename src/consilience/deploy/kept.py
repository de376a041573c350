"""What members of a federation keep on disk: whole or not at all, and refused by name where damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from consilience import tree, wire
from consilience.errors import UserError
from consilience.experiment.folder import atomic_write
from consilience.types import State

SEPARATOR = "|"
"""Stands between the name of a part and those of its groups."""


def save(path: Path, run: str, parts: Mapping[str, State], fields: Mapping[str, str]) -> None:
    """Replace a member's file.

    Args:
        path: The file.
        run: What its run is called; a file serves no other.
        parts: States, by names of their own.
        fields: What else there is to remember.
    """
    tensors = {
        f"{part}{SEPARATOR}{name}": value
        for part, state in parts.items()
        for name, value in tree.flatten(state).items()
    }
    groups = {f"groups {part}": "\n".join(state) for part, state in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, wire.encode_tensors(tensors, {**fields, **groups, "run": run}))


def load(path: Path, run: str) -> tuple[dict[str, State], dict[str, str]] | None:
    """The parts and fields of a member's file; None where there is none."""
    try:
        tensors, fields = wire.decode_tensors(path.read_bytes())
    except FileNotFoundError:
        return None
    except wire.WireError as error:
        raise UserError(f"{path}: {error}; move it away to begin anew") from None
    if fields.pop("run", None) != run:
        raise UserError(f"{path} belongs to a federation with other terms; move it away to begin anew")
    with understood(path):
        groups = {name: fields.pop(name) for name in list(fields) if name.startswith("groups ")}
        parts = {
            name.removeprefix("groups "): tree.unflatten({}, filter(None, text.split("\n")))
            for name, text in groups.items()
        }
        for path_of_tensor, value in tensors.items():
            part, _, name = path_of_tensor.partition(SEPARATOR)
            group, _, tensor = name.partition("/")
            parts[part][group][tensor] = value
    return parts, fields


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Refuse a file by name where what is made of its content cannot be made, although its digest fits."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is no file of a member ({what:.80}); move it away to begin anew") from None
