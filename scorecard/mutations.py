"""Frames and configurations that were mutated at random, always in the same way for a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from scorecard.runs import FRAGILE

VALUES: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 1e308, float("nan"), float("inf"), "", "x", "x" * 300, "\x00", "٣",
    [], [[]], {}, {"name": "x"}, [1, "a"], -0.0, "1e5", "../..", {"a": {"b": {"c": 1}}}, [0.1] * 50,
]  # fmt: skip


def frames(data: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Frames that are not as one was sent, and what was done to it."""
    draw = random.Random(seed)
    for _ in range(count):
        kind, frame = _frame(data, draw)
        while frame == data:
            kind, frame = _frame(data, draw)
        yield kind, frame


def _frame(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    place, head = draw.randrange(len(data)), 8 + int.from_bytes(data[:8], "little")
    inside = draw.randrange(8, head)  # of the header, where most of what can be understood otherwise stands
    token = draw.choice([b"0", b"-1", b"1e9", b"9" * 40, b"null", b"[]", b'"x"', b" "])

    def flipped(where: int) -> bytes:
        return data[:where] + bytes([data[where] ^ 1 << draw.randrange(8)]) + data[where + 1 :]

    kinds: dict[str, Callable[[], bytes]] = {
        "flip": lambda: flipped(place),
        "flip in the header": lambda: flipped(inside),
        "cut": lambda: data[:place],
        "more": lambda: data + draw.randbytes(draw.randrange(1, 64)),
        "inserted": lambda: data[:place] + draw.randbytes(draw.randrange(1, 16)) + data[place:],
        "removed": lambda: data[:place] + data[place + draw.randrange(1, 16) :],
        "length": lambda: draw.randrange(2**64).to_bytes(8, "little") + data[8:],
        "token": lambda: data[:inside] + token + data[inside + len(token) :],
        "noise": lambda: draw.randbytes(draw.randrange(256)),
        "twice": lambda: data + data,
    }
    kind = draw.choice(list(kinds))
    return kind, kinds[kind]()


def configurations(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Texts of configurations with a mistake, and the key that it is at; none where the text is damaged."""
    draw = random.Random(seed)
    for _ in range(count):
        values = json.loads(json.dumps(FRAGILE))
        key = draw.choice(list(values))
        what = draw.randrange(5)
        if what == 0:  # another key
            wrong = key[:-1] + draw.choice("xyz")
            yield wrong, yaml.safe_dump({**values, wrong: values.pop(key)})
        elif what == 1:  # damage
            text = yaml.safe_dump(values)
            place = draw.randrange(len(text))
            yield "", text[:place] + draw.choice("\t:{[\"'&*!%\x07\x00é- ") + text[place + 1 :]
        elif what == 2 and isinstance(values[key], dict):  # inside a section
            inner = draw.choice(list(values[key]))
            values[key][inner] = draw.choice(VALUES)
            yield inner, yaml.safe_dump(values, allow_unicode=True)
        else:
            values[key] = draw.choice(VALUES)
            yield key, yaml.safe_dump(values, allow_unicode=True)
