"""Methods in a configuration: a name with options, an alias, or a composition of parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, cast

from consilience.algorithm import Algorithm, Init
from consilience.algorithms import ALIASES, METHODS
from consilience.config.hints import place_of
from consilience.config.options import (
    FLOATS,
    Sweep,
    check_count,
    part_schema,
    read_sweep,
    sweep_of,
    write_part,
)
from consilience.errors import UserError, abridged, unknown
from consilience.method import Composed
from consilience.objectives import OBJECTIVES
from consilience.plugins import is_reference, name_of
from consilience.rules import RULES
from consilience.server_steps import SERVER_STEPS
from consilience.sweeping import apart
from consilience.transforms import TRANSFORMS
from consilience.transforms.base import Transformed
from consilience.transforms.until import Until

_SLOTS: dict[str, Mapping[str, type[Any]]] = {"objective": OBJECTIVES, "rule": RULES, "server": SERVER_STEPS}
"""The parts of a composed method, and what there is of each."""

CHANGES = ("label", "transforms", "then")
"""The keys that every entry of `method:` may have."""


@dataclass(frozen=True)
class MethodChoice:
    """One entry of `method:`."""

    label: str
    """What reports call it."""
    sweep: Sweep[Algorithm]
    """The method, in one variant or, where numbers are lists, in several."""
    init: Init | None
    """How models start, where the name says so (dechetero, dechomo)."""
    on_graph: bool
    """Whether the name means a graph."""


def read_method(value: object) -> MethodChoice:
    """The method that an entry in a configuration, or an Algorithm, stands for."""
    if isinstance(value, MethodChoice):
        return value
    if isinstance(value, Algorithm):
        return _object(value)
    if isinstance(value, Mapping):
        options = {str(key): option for key, option in value.items()}
        label = options.pop("label", None)
        if label is not None and not isinstance(label, str):
            raise UserError(f"method: label must be text, not {abridged(label)}")
        transforms, then = options.pop("transforms", []), options.pop("then", None)
        if "name" not in options and options.keys() & _SLOTS.keys():
            choice = _composition(options, label)
        else:
            choice = _named(options, label)
        choice = _transformed(choice, transforms, label)
        return choice if then is None else _followed(choice, then, label)
    return _named({"name": value}, None)


def _transformed(choice: MethodChoice, entries: object, label: str | None) -> MethodChoice:
    """A method with its messages changed, in the order of the list."""
    if not isinstance(entries, list):
        raise UserError("method: transforms is a list, e.g. [{name: noised, sigma: 0.1}]")
    if not entries:
        return choice
    pairs = list(zip(choice.sweep.variants, choice.sweep.numbers, strict=True))
    names, written = [choice.label], []
    for entry in entries:
        sweep = read_sweep("transform", TRANSFORMS, entry)
        check_count("method: transforms", len(pairs) * len(sweep.variants))
        pairs = [
            (transform(algorithm), apart(first, second, transform.name))
            for algorithm, first in pairs
            for transform, second in zip(sweep.variants, sweep.numbers, strict=True)
        ]
        names.append(_label(sweep.variants[0].name, sweep.variants[0], sweep.written))
        written.append(sweep.written)
    variants, numbers = zip(*pairs, strict=True)
    name = label or " ".join(names)
    whole = Sweep(variants, numbers, {**choice.sweep.written, "transforms": written, "label": name})
    return replace(choice, label=name, sweep=whole)


def _followed(choice: MethodChoice, value: object, label: str | None) -> MethodChoice:
    """A method for some rounds, then another."""
    if not isinstance(value, Mapping) or value.keys() != {"method", "after"}:
        raise UserError("method: then says what comes next and when, e.g. {method: fedavg, after: 20}")
    rounds, other = value["after"], read_method(value["method"])
    if not isinstance(rounds, int) or isinstance(rounds, bool):
        raise UserError(f"method: after is a number of rounds, not {abridged(rounds)}")
    if rounds < 0:
        raise UserError(f"method: after is a number of rounds, at least 0, not {rounds}")
    if len(other.sweep.variants) > 1:
        raise UserError("method: the method that comes next cannot be a sweep")
    if (choice.init, choice.on_graph) != (other.init, other.on_graph):
        raise UserError(f"method: {choice.label} and {other.label} do not start alike")
    name = label or f"{choice.label} then {other.label}"
    then = {"method": other.sweep.written, "after": rounds}
    variants = tuple(Until(first, rounds, other.sweep.variants[0]) for first in choice.sweep.variants)
    whole = Sweep(
        cast("tuple[Algorithm, ...]", variants),
        choice.sweep.numbers,
        {**choice.sweep.written, "then": then, "label": name},
    )
    return replace(choice, label=name, sweep=whole)


def _object(algorithm: Algorithm) -> MethodChoice:
    """The choice that an object stands for: that of its entry in a file, where it can have one."""
    entry = _entry(algorithm)
    if entry is not None:
        return read_method(entry)
    sweep = sweep_of(algorithm)
    label = _label(algorithm.label, algorithm, sweep.written)
    labelled = replace(sweep, written={**sweep.written, "label": label})
    return MethodChoice(label, labelled, None, on_graph=False)


def _entry(algorithm: Algorithm) -> dict[str, object] | None:
    """The entry that stands for an object in a file; None where none does."""
    if isinstance(algorithm, Composed):
        slots = {slot: getattr(algorithm, slot) for slot in _SLOTS}
        known = all(_knows(_SLOTS[slot], part) for slot, part in slots.items())
        return {slot: write_part(part) for slot, part in slots.items()} if known else None
    if isinstance(algorithm, Transformed):
        inner, transform = _entry(algorithm.inner), algorithm.transform
        if inner is None or "then" in inner or not _knows(TRANSFORMS, transform):
            return None
        before = cast("list[object]", inner.get("transforms", []))
        return {**inner, "transforms": [*before, write_part(transform)]}
    if isinstance(algorithm, Until):
        first, then = _entry(algorithm.inner), _entry(algorithm.then)
        if first is None or then is None or "then" in first:
            return None
        return {**first, "then": {"method": then, "after": algorithm.rounds}}
    return write_part(algorithm) if _knows(METHODS, algorithm) else None


def _knows(registry: Mapping[str, type[Any]], part: object) -> bool:
    """Whether a configuration can name a part."""
    return registry.get(name_of(part)) is type(part)


def _named(options: dict[str, object], label: str | None) -> MethodChoice:
    name = options.get("name")
    if not isinstance(name, str):
        raise UserError(f"method: a name is missing; known: {', '.join(sorted({*METHODS, *ALIASES}))}")
    alias = ALIASES.get(name)
    if alias is None and name not in METHODS:
        raise unknown("method", name, {*METHODS, *ALIASES})
    sweep = read_sweep("method", METHODS, {**options, "name": alias.method if alias else name}, CHANGES)
    first = sweep.variants[0]
    written = {**sweep.written, "name": name}
    label = label or _label(first.name if is_reference(name) else name, first, sweep.written)
    renamed = Sweep(sweep.variants, sweep.numbers, {**written, "label": label})
    return MethodChoice(label, renamed, alias.init if alias else None, on_graph=alias is not None)


def _composition(options: dict[str, object], label: str | None) -> MethodChoice:
    for key in options:
        if key not in _SLOTS:
            known = (*_SLOTS, *CHANGES)
            raise unknown("part of a composed method", key, known, place_of(key, "method", known))
    slots = {slot: read_sweep(slot, _SLOTS[slot], value) for slot, value in options.items()}
    check_count(f"method: {', '.join(slots)}", math.prod(len(sweep.variants) for sweep in slots.values()))
    variants: list[Algorithm] = []
    numbers: list[dict[str, object]] = []
    for chosen in itertools.product(*(range(len(sweep.variants)) for sweep in slots.values())):
        picks = dict(zip(slots, chosen, strict=True))
        variants.append(Composed(**{slot: slots[slot].variants[i] for slot, i in picks.items()}))
        told: dict[str, object] = {}
        for slot, i in picks.items():
            told = apart(told, slots[slot].numbers[i], slot)
        numbers.append(told)
    name = label or "+".join(sweep.variants[0].name for sweep in slots.values())
    written: dict[str, object] = {slot: sweep.written for slot, sweep in slots.items()} | {"label": name}
    return MethodChoice(name, Sweep(tuple(variants), tuple(numbers), written), None, on_graph=False)


def _label(name: str, part: object, swept: Mapping[str, object]) -> str:
    """The name, with the options that are not the defaults."""
    special = [
        f"{field.name}={getattr(part, field.name)}"
        for field in fields(cast(Any, part))
        if getattr(part, field.name) != field.default
        and not isinstance(swept.get(field.name), list)
        and field.default_factory is MISSING
    ]
    return " ".join([name, *special])


def method_schema() -> dict[str, object]:
    """The JSON schema of one entry of `method:`."""
    text: dict[str, object] = {"type": "string"}
    changes: dict[str, dict[str, object]] = {
        "label": text,
        "transforms": {"type": "array", "items": part_schema(TRANSFORMS, sweep=FLOATS)},
        "then": {
            "type": "object",
            "properties": {"method": {}, "after": {"type": "integer", "minimum": 0}},
            "required": ["method", "after"],
            "additionalProperties": False,
        },
    }
    named = {**METHODS, **{alias: METHODS[target.method] for alias, target in ALIASES.items()}}
    composition = {
        "type": "object",
        "title": "composition",
        "properties": {slot: part_schema(parts, sweep=FLOATS) for slot, parts in _SLOTS.items()} | changes,
        "additionalProperties": False,
    }
    return {"anyOf": [part_schema(named, sweep=FLOATS, more=changes), composition]}
