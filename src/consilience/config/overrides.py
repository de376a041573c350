"""`key=value` on the command line: which value of a configuration file it replaces."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from consilience.errors import UserError, abridged
from consilience.plain import read_yaml

DEFAULT_PARTS = {
    "method": "fedavg",
    "partition": "iid",
    "problem": "classification",
    "model": "mlp",
    "solver": "sgd",
    "schedule": "constant",
    "topology": "star",
}
"""The keys that hold named parts, and the part each holds by default."""

SLOTS = ("objective", "rule", "server")
"""The keys of a composed method, which hold named parts, too."""


TEXTS = ("note", "name")
"""Keys that hold texts, whatever these look like."""


def check_effect(values: dict[str, Any], override: str) -> None:
    """Refuse an override that every item of `compare` overrides in turn."""
    key = override.partition("=")[0].partition(".")[0]
    items = values.get("compare")
    if isinstance(items, list) and items and all(isinstance(item, dict) and key in item for item in items):
        told = f"override {abridged(override)} has no effect: every item of compare sets {key}"
        raise UserError(f"{told}; try compare.0.{key}")


def apply(values: dict[str, Any], override: str, earlier: Set[str]) -> None:
    """Change the values of a file, in place.

    Args:
        values: The keys and values of the file.
        override: What to change, as `key=value`.
        earlier: The keys of the overrides that came before.
    """
    path, sign, text = override.partition("=")
    if not sign or not path:
        raise UserError(f"override {abridged(override)} is not of the form key=value")
    change(values, path, _read(path, text, override), override, earlier)


def change(values: dict[str, Any], path: str, value: Any, override: str, earlier: Set[str]) -> None:
    """Change the value under a dotted key, in place.

    Args:
        values: The keys and values of a file.
        path: The dotted key.
        value: What stands there from now on.
        override: What is changed, in the text of an error.
        earlier: The keys that were changed before.
    """
    *parents, last = path.split(".")
    place: Any = values
    for key in parents:
        place = _enter(place, key, override)
    if isinstance(place, list):
        place[_position(place, last, override)] = value
        return
    if not isinstance(place, dict):
        raise UserError(
            f"override {abridged(override)}: {parents[-1]!r} is a plain value, it has no {last!r}"
        )
    owner = next((key for key in reversed(parents) if not key.isdigit()), "")
    named = place.get("name") or (DEFAULT_PARTS["solver"] if owner == "solver" else None)
    if last == "name" and owner in (*DEFAULT_PARTS, *SLOTS) and named != value:
        # Another part has other options: those of the file go, those of earlier overrides stay.
        for key in [key for key in place if ".".join([*parents, key]) not in earlier]:
            del place[key]
    if owner == "local" and last in ("epochs", "steps"):
        place.pop("steps" if last == "epochs" else "epochs", None)  # one displaces the other
    place[last] = value


def _read(path: str, text: str, override: str) -> Any:
    """The value that a text stands for: what YAML says, but where a text is wanted never anything else."""
    try:
        value = read_yaml(text, f"override {abridged(override)}: the value")
    except UserError:
        if path in TEXTS:
            return text
        raise
    return text if path in TEXTS and not isinstance(value, str) else value


def _enter(place: Any, key: str, override: str) -> Any:
    """The value under a key; a name becomes a mapping with that name, a missing part the default one."""
    inside: Any = _position(place, key, override) if isinstance(place, list) else key
    if not isinstance(place, list | dict):
        raise UserError(f"override {abridged(override)}: {key!r} is inside a plain value")
    if isinstance(place, dict) and place.get(key) is None:
        place[key] = {"name": DEFAULT_PARTS[key]} if key in DEFAULT_PARTS else {}
    if isinstance(place[inside], str):
        place[inside] = {"name": place[inside]}
    return place[inside]


def _position(place: list[Any], key: str, override: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", key) or int(key) >= len(place):
        told = f"a list of {len(place)} is entered by a number, e.g. method.0.name"
        raise UserError(f"override {abridged(override)}: {told}")
    return int(key)
