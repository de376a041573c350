"""Configurations with mistakes: each must be planned, or refused in one line that names the field.

`mutations(count, seed)` yields as many as are asked for, always the same ones; `judge` reads one as the
command line would, plans the run, and raises `Failure` where anything else comes out than a plan or a
UserError of one line that names the field. Within `bounded_memory` what takes gigabytes fails as well; what
keeps a processor busy for `SECONDS` is given up.
`python -m scorecard.mutated_configurations 10000 0` judges many.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import yaml

from consilience.config import load_config, read_config
from consilience.data.dataset import Dataset
from consilience.deploy.agreeing import agree
from consilience.deploy.files import described, federation_of
from consilience.errors import UserError
from consilience.experiment.planning import plan
from consilience.reproduce import read_recipe
from consilience.reproduce.page import recipe_page
from consilience.sweep import read_study
from scorecard.mistakes import BASES, KEYS, NAMES, NUMBERS, OTHERS, PARTS, RECIPE, SMALL, STUDY, TEXTS, Values

SECONDS = 20
"""How long a processor may be at work on one, whatever else the machine does."""
MEMORY = 3 << 30
"""How many bytes more than the process has already may be taken."""
LONGEST = 2100
"""How many characters a line may have, with the name of the file."""
EXAMPLES = Path(__file__).parents[1] / "examples"

Kind = Literal["run", "study", "recipe", "member"]
Place = tuple[Any, ...]


class Failure(AssertionError):  # noqa: N818 - it is one of the judged, not of this code
    """A mutation came to something else than a plan, or one line that names the field."""


class _Hang(BaseException):
    pass


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


@dataclass(frozen=True)
class Verdict:
    """What came of a mutation."""

    valid: bool
    line: str
    """Why it was refused."""


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


@cache
def tiny() -> Dataset:
    """Data that are planned with in place of those that a file names."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 255, (240, 1, 28, 28), dtype=np.uint8)
    targets, groups = np.arange(240) % 10, np.arange(240) // 10
    rest: dict[str, Any] = {"groups": groups, "test_groups": groups[:60]}
    return Dataset.from_arrays("mnist-sample", inputs, targets, inputs[:60], targets[:60], classes=10, **rest)


def judge(mutation: Mutation, folder: Path) -> Verdict:
    """What comes of a mutation, whose file is written to a folder; a Failure where it is nothing allowed."""
    file = folder / "mutated.yaml"
    file.write_text(mutation.text, encoding="utf-8", errors="surrogatepass")
    try:
        with _watched():
            _use(mutation, file)
    except UserError as error:
        return _refused(mutation, str(error))
    except _Hang as hang:
        raise Failure(f"{mutation.name}: it takes more than {SECONDS} s") from hang
    except Exception as error:
        raise Failure(f"{mutation.name}: {type(error).__name__}: {str(error)[:300]}") from error
    return Verdict(True, "")


def _use(mutation: Mutation, file: Path) -> None:
    """Read the file as the command line would, and plan what it asks for."""
    if mutation.kind == "study":
        read_study(file, mutation.overrides)
        return
    if mutation.kind == "recipe":
        recipe = read_recipe(file)
        recipe.study(mutation.overrides, quick=True)
        recipe_page(recipe, {})
        return
    if mutation.kind == "member":
        agree(federation_of(file, here=False))
        return
    load_config(file, mutation.overrides).resolved()
    arms = plan(load_config(file, mutation.overrides, tiny()).resolved())
    assert arms


def _refused(mutation: Mutation, line: str) -> Verdict:
    if "\n" in line or not line.isprintable() or len(line) > LONGEST:
        raise Failure(f"{mutation.name}: no line that can be shown: {line[:300]!r}")
    # A part that was put there may be blamed by its name.
    given = " ".join((mutation.text, *mutation.overrides))
    words = {*mutation.about, *(name for name in PARTS if name in given), "key", "line", "YAML"}
    if mutation.about and not any(word and word.removesuffix("s") in line for word in words):
        raise Failure(f"{mutation.name}: it names none of {sorted(mutation.about)}: {line[:300]}")
    return Verdict(False, line)


@contextmanager
def _watched() -> Iterator[None]:
    """What takes too long in it is given up."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """What takes gigabytes in it fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main(count: int, seed: int, folder: Path) -> int:
    """Judge so many, say what failed, and return how many did."""
    failed = valid = 0
    with bounded_memory():
        for mutation in mutations(count, seed):
            try:
                valid += judge(mutation, folder).valid
            except Failure as failure:
                failed += 1
                print(failure, flush=True)
    print(
        f"{count} mutations of seed {seed}: {valid} valid, {count - valid - failed} refused, {failed} failed"
    )
    return failed


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), Path(place))))
