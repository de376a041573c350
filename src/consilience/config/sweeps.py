"""Lists in place of numbers that belong to a setting, or to how clients train in it.

Numbers of methods and solvers share one computation. Those here change data, shapes or amounts of work: every
combination of them is computed by itself. Numbers of the setting (how data are split, who takes part) make
settings to compare; numbers of training (`local`, `l2`) make variants of every method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import BaseModel

from consilience import sweeping
from consilience.config.options import combinations, lists_in
from consilience.config.sections import LocalSection
from consilience.data.partitioners import PARTITIONERS
from consilience.graphs import TOPOLOGIES

OF_SETTING = ("clients", "participation", "failure_rate", "partition", "topology")
"""The keys whose numbers make settings."""
OF_TRAINING = ("local", "l2")
"""The keys whose numbers make variants of every method."""

PLAIN: dict[str, object] = {"clients": int, "participation": float, "failure_rate": float, "l2": float}
"""The keys that are numbers themselves, and their types."""
PARTS: dict[str, Mapping[str, type]] = {"partition": PARTITIONERS, "topology": TOPOLOGIES}
"""The keys that hold named parts, any number of which can be swept."""


@dataclass(frozen=True)
class Numbers:
    """What a configuration sweeps beside its methods and its solver."""

    lists: dict[str, list[object]] = field(default_factory=dict)
    """The values by dotted key; the configuration itself has the first of each."""
    chosen: dict[str, object] = field(default_factory=dict)
    """The numbers that tell one of several settings apart, by short name."""

    def of(self, keys: tuple[str, ...]) -> dict[str, list[object]]:
        """The lists under some keys."""
        return {path: values for path, values in self.lists.items() if path.partition(".")[0] in keys}


def take_lists(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[object]]]:
    """The values of a configuration with the first number of every list, and the lists by dotted key."""
    found: dict[str, list[object]] = {}
    for key in (*OF_SETTING, *OF_TRAINING):
        if key in PLAIN:
            found |= lists_in({key: values.get(key)}, PLAIN)
        else:
            options, kinds = _options(key, values.get(key))
            found |= {f"{key}.{name}": numbers for name, numbers in lists_in(options, kinds).items()}
    firsts = {path: numbers[0] for path, numbers in found.items()}
    return put(values, firsts), {path: numbers for path, numbers in found.items() if len(numbers) > 1}


def _options(key: str, value: object) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """What is written under a key, and the types that its options have."""
    if key == "local":
        kinds = {name: one.annotation for name, one in LocalSection.model_fields.items()}
        return (value, kinds) if isinstance(value, Mapping) else ({}, kinds)
    if isinstance(value, Mapping):
        known = PARTS[key].get(str(value.get("name")))
        return value, sweeping.option_types(known) if known else {}
    if not sweeping.is_part(value):
        return {}, {}
    return {name: getattr(value, name) for name in _names(value)}, sweeping.option_types(type(value))


def _names(part: Any) -> list[str]:
    return [one.name for one in fields(part)]


def put(values: Mapping[str, Any], numbers: Mapping[str, object]) -> dict[str, Any]:
    """The values of a configuration with others (numbers or lists) under some dotted keys."""
    changed = dict(values)
    for path, number in numbers.items():
        key, _, name = path.partition(".")
        place = changed[key]
        if not name:
            changed[key] = number
        elif isinstance(place, BaseModel):
            changed[key] = {**place.model_dump(), name: number}
        elif isinstance(place, Mapping):
            changed[key] = {**place, name: number}
        else:
            changed[key] = sweeping.replace(place, {name: number})
    return changed


def expand(lists: Mapping[str, list[object]]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """Every combination: by dotted key, and by the short names that labels use."""
    for chosen in combinations(lists):
        short: dict[str, object] = {}
        for path, number in chosen.items():
            owner, _, name = path.rpartition(".")
            short = sweeping.apart(short, {name: number}, owner)
        yield chosen, short
