"""Configurations with mistakes: `mutations` yields as many as are asked for, always the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from consilience.config import read_config
from consilience.deploy.agreeing import agree
from consilience.deploy.files import described
from scorecard.mistakes import BASES, KEYS, NAMES, NUMBERS, OTHERS, RECIPE, SMALL, STUDY, TEXTS, Values

EXAMPLES = Path(__file__).parents[1] / "examples"

Kind = Literal["run", "study", "recipe", "member"]
Place = tuple[Any, ...]


@dataclass(frozen=True)
class Mutation:
    """A file, and changes on the command line, with mistakes."""

    name: str
    """Which one it is, to make it again."""
    kind: Kind
    text: str
    overrides: tuple[str, ...] = ()
    about: frozenset[str] = frozenset()
    """Words of which a line must have one to name the field; none: the line of the file will do."""


@cache
def bases() -> dict[str, tuple[Kind, Values]]:
    """What is mutated: the examples and some more, as plain values."""
    found: dict[str, tuple[Kind, Values]] = {
        name: ("run", {**SMALL, **values}) for name, values in BASES.items()
    }
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        if path.name != "compose.yaml":  # that is for Docker
            found[path.stem] = "run", yaml.safe_load(path.read_text())
    found["study"] = "study", STUDY
    found["recipe"] = "recipe", RECIPE
    agreed = agree(read_config({**SMALL, "method": "hwa", "seeds": [0], "data": "mnist-sample"}))
    found["member"] = "member", described(agreed)
    return found


def mutations(count: int, seed: int = 0) -> Iterator[Mutation]:
    """So many mutations; those of a seed are always the same."""
    known = bases()
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        base = draw.choice([*known])
        kind, values = known[base]
        name = f"{seed}:{number} of {base}"
        if draw.random() < 0.15:
            yield Mutation(name, kind, _damaged(_text(values), draw))
        elif kind != "member" and draw.random() < 0.25:
            overrides, about = _overrides(values, draw)
            yield Mutation(name, kind, _text(values), overrides, about)
        else:
            words: set[str] = set()
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                values, about = _changed(values, draw)
                words |= about
            yield Mutation(name, kind, _text(values), (), frozenset(words))


def _text(values: Any) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _places(values: Any, here: Place = ()) -> Iterator[Place]:
    """Where there is something, the top itself left out."""
    items = (
        values.items() if isinstance(values, dict) else enumerate(values if isinstance(values, list) else ())
    )
    for key, inner in items:
        yield (*here, key)
        yield from _places(inner, (*here, key))


def _poison(draw: random.Random) -> Any:
    if draw.random() < 0.02:
        deep: Any = 1
        for _ in range(draw.choice([10, 200])):
            deep = draw.choice([[deep], {"a": deep}])
        return deep
    return draw.choice(draw.choice([NUMBERS, NUMBERS, TEXTS, OTHERS, NAMES]))


def _changed(values: Values, draw: random.Random) -> tuple[Values, frozenset[str]]:
    """The values with one change, and the words that name the place."""
    place = draw.choice([*_places(values)])
    how = draw.choice(["poison"] * 6 + ["delete", "add", "rename", "wrap", "swap", "list", "scale", "scale"])
    if how == "poison":
        return _put(values, place, _poison(draw)), _words(place)
    if how == "delete":
        return _put(values, place, ...), _words(place)
    if how == "add":
        key = draw.choice(KEYS)
        place = (*place[: draw.randrange(len(place))], key)
        return _put(values, place, _poison(draw)), _words(place)
    if how == "rename":
        changed = _put(values, place, ...)
        place = (*place[:-1], draw.choice([*KEYS, f"{place[-1]}s"]))
        return _put(changed, place, _at(values, place) or 1), _words(place)
    if how == "wrap":
        inner = _at(values, place)
        return _put(values, place, draw.choice([[inner], {"name": inner}, [inner, inner]])), _words(place)
    if how == "scale":
        numbers = [place for place in _places(values) if isinstance(_at(values, place), int | float)]
        place = draw.choice(numbers or [place])
        value = _at(values, place)
        scaled = value * draw.choice([-1, 0.5, 2, 3, 10, 30]) if isinstance(value, int | float) else 1
        return _put(values, place, scaled), _words(place)
    if how == "swap":
        other = draw.choice([*_places(values)])
        return _put(values, place, _at(values, other)), _words(place) | _words(other)
    return _put(values, place, [draw.choice(NUMBERS[:12]) for _ in range(draw.choice([2, 5]))]), _words(place)


def _words(place: Place) -> frozenset[str]:
    return frozenset(part for step in place for part in str(step).split(".") if not part.isdigit())


def _at(values: Any, place: Place) -> Any:
    for key in place:
        try:
            values = values[key]
        except (KeyError, IndexError, TypeError):
            return None
    return values


def _put(values: Any, place: Place, value: Any) -> Any:
    """A copy with another value at a place; nothing there where it is `...`."""
    key, *rest = place
    if isinstance(values, list):
        changed: Any = list(values)
        if not isinstance(key, int) or key >= len(changed):
            return [*changed, *([] if value is ... else [value])]
    elif isinstance(values, dict):
        changed = dict(values)
    else:
        changed = {}
    if rest:
        changed[key] = _put(
            changed[key] if isinstance(changed, list) else changed.get(key), tuple(rest), value
        )
    elif value is ...:
        del changed[key]
    else:
        changed[key] = value
    return changed


def _overrides(values: Values, draw: random.Random) -> tuple[tuple[str, ...], frozenset[str]]:
    """Changes on the command line, and the words that name what they are about."""
    places = [place for place in _places(values) if not {"grid", "cells", "tables", "claims"} & {*place}]
    found, words = [], set[str]()
    for _ in range(draw.choice([1, 1, 2])):
        place = draw.choice([draw.choice(places), (draw.choice(KEYS),), ("method", 5), ("", "a")])
        value = _poison(draw)
        text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).strip()
        found.append(f"{'.'.join(map(str, place))}{draw.choice(['='] * 9 + [''])}{text[:30_000]}")
        words |= _words(place)
    return tuple(found), frozenset(words | {"override"})


def _damaged(text: str, draw: random.Random) -> str:
    """A text with something else in some place."""
    lines = text.splitlines()
    line = draw.randrange(len(lines))
    spot = draw.randrange(len(text))
    how = draw.randrange(12)
    if how == 0:
        return "\n".join([*lines[:line], *lines[line + 1 :]])
    if how == 1:
        return "\n".join([*lines, lines[line]])
    if how == 2:
        return "\n".join([*lines[:line], draw.choice(["  ", "\t", " "]) + lines[line], *lines[line + 1 :]])
    if how == 3:
        bombs = "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 9))
        return f"x0: &x0 [lol]\n{bombs}\n{text}"
    if how == 4:
        return text + "note: " + draw.choice(["[", "{a: "]) * draw.choice([30, 1000, 50_000])
    if how == 5:
        sign = draw.choice(["&a ", "*a", "!!python/object:os.system ", "!x ", "<<: "])
        return f"{text[:spot]}{sign}{text[spot:]}"
    if how == 6:
        return text[:spot]
    if how == 7:
        return f"{text}\n---\n{text}"
    if how == 8:
        return text.replace(": ", draw.choice([":", ": 'x", ': "\\ud800"\n', " : - "]), 1)
    if how == 9:
        return text + draw.choice(["? [1, 2]\n: 3\n", "5: 6\n", "null: 1\n", "true: x\n", "%TAG ! x\n"])
    if how == 10:
        return (
            text + f"note: {draw.choice(['!!binary aGk=', '!!set {a, b}', '2020-02-30', '!!int x', '@x'])}\n"
        )
    odd = draw.choice(
        ["\0", "\x07", "é", "\U0001f600", "\ufeff", "\x85", '"', "'", "#", "|", ">", ":", "\\", "}"]
    )
    return f"{text[:spot]}{odd}{text[spot + 1 :]}"
