"""Frames that somebody damaged, forged or wrote otherwise.

`frames(10_000)` gives so many, always the same for a seed, `crowded()` a few large ones. A forged frame has a
digest that fits: whoever writes one can compute it.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

from consilience import heads, wire
from scorecard.forging import Parts, framed, honest, with_head, written

Frame = tuple[str, bytes]
"""What was done, and the bytes."""


# What is done to frames: each takes a source of chance and an honest frame.

DIGITS = [
    "-000000001",
    "0000_00001",
    "٠٠٠٠٠٠٠٠٠١",
    "9" * 4000,
    "+000000001",
    " 000000001",
    "1",
    "1e00000000",
    "00000000.1",
]
SHAPES: list[list[Any]] = [
    [0, 2**62, 2**62],
    [2**64],
    [-1],
    [2**32, 2**32],
    [1] * 65,
    [1.0],
    ["3"],
    [True],
    [[3]],
    [10**400],
]
MANY = json.dumps([str(number) for number in range(20_000)])
TEXTS = [
    "[" * 100_000,
    "[" + "[]," * 20_000 + "[]]",
    "{" + '"a":{},' * 20_000 + '"b":{}}',
    '{"a":1e999999}',
    "null",
    "",
    "NaN",
]


def flipped(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data))]


def extended(chance: random.Random, data: bytes) -> bytes:
    return data + chance.choice([b"\0", b" ", b"\n", data, chance.randbytes(100)])


def shuffled(chance: random.Random, data: bytes) -> bytes:
    """A part of the frame left out, said twice, or in the place of another."""
    one, two = sorted(chance.randrange(len(data)) for _ in range(2))
    return chance.choice([data[:one] + data[two:], data[:two] + data[one:], data[two:] + data[:one]])


def another_length(chance: random.Random, data: bytes) -> bytes:
    old = int.from_bytes(data[:8], "little")
    length = chance.choice(
        [0, 1, old - 1, old + 1, old + 8, len(data), 2**31, 2**32, 2**62, 2**63, 2**64 - 1]
    )
    return length.to_bytes(8, "little") + data[8:]


def noise(chance: random.Random, data: bytes) -> bytes:
    things = [
        chance.randbytes(chance.randrange(200)),
        pickle.dumps({"params": [1.0, 2.0]}),
        gzip.compress(data, mtime=0),
        b"PK\3\4" + data,
        framed(chance.choice(TEXTS)),
        framed(written("__metadata__", {"consilience": chance.choice(TEXTS)}).join("{}")),
        chance.randbytes(8) + data[8:],
    ]
    return chance.choice(things)


def other_json(chance: random.Random, data: bytes) -> bytes:
    """The same content in other JSON."""
    parts = Parts.of(data)
    reordered = [(name, dict(reversed(list(entry.items())))) for name, entry in parts.entries]
    ways: list[Callable[[], bytes]] = [
        lambda: parts.joined(separators=(", ", ": ")),
        lambda: parts.joined(indent=1),
        lambda: parts.joined(sort_keys=True),
        lambda: parts.joined(pad=64) + b"",
        lambda: with_head(data, lambda head: head.rstrip(b" ") + b"\t" * 8),
        lambda: with_head(data, lambda head: b" " + head),
        lambda: with_head(data, lambda head: head.replace(b"data_offsets", b"\\u0064ata_offsets")),
        lambda: with_head(data, lambda head: head.replace(b"consilience", b"consilienc\\u0065", 1)),
        lambda: with_head(data, lambda head: head.replace(b'{"__', b'{"__metadata__":{},"__', 1)),
        lambda: with_head(
            data, lambda head: head.replace(b"{", b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},', 1)
        ),
        lambda: with_head(data, lambda head: head.replace(b"[0,", b"[-0,")),
        lambda: with_head(data, lambda head: head.replace(b"[0,", b"[0.0,")),
        lambda: with_head(data, lambda head: head.replace(b"[0,", b"[00,")),
        lambda: with_head(
            data, lambda head: head.replace(b'{"consilience":', b'{"format":"pt","consilience":')
        ),
        lambda: Parts(parts.metadata, reordered, parts.body).joined(),
        lambda: Parts(parts.metadata, parts.entries[::-1], parts.body).joined(),
    ]
    return chance.choice(ways)()


def other_metadata(chance: random.Random, data: bytes) -> bytes:
    """Metadata of another form, or written otherwise, with a digest that fits."""
    parts = Parts.of(data)
    parts.sign()
    metadata = parts.metadata
    texts = [
        json.dumps(metadata, separators=(",", ":")),
        json.dumps(metadata, sort_keys=True),
        json.dumps(metadata, indent=1),
        json.dumps({**metadata, "more": 1}),
        json.dumps({**metadata, "sha256": metadata["sha256"].upper()}),
        json.dumps({**metadata, "schema": "consilience/2"}),
        json.dumps({**metadata, "order": metadata["order"] * 2}),
        json.dumps({**metadata, "order": metadata["order"][1:]}),
        json.dumps({**metadata, "order": dict.fromkeys(metadata["order"], 1)}),
        json.dumps({**metadata, "fields": list(metadata["fields"].items())}),
        json.dumps({**metadata, "fields": {**metadata["fields"], "about": 1}}),
        json.dumps({**metadata, "fields": {**metadata["fields"], "x" * 10_000: ""}}),
        json.dumps(
            {name: value for name, value in metadata.items() if name != chance.choice(list(metadata))}
        ),
        json.dumps(metadata).replace('"order"', '"schema": "consilience/1", "order"'),
        json.dumps(metadata).replace("o", "\\u006f", 1),
        json.dumps(metadata) + " ",
        chance.choice(TEXTS),
    ]
    entries = {"__metadata__": {"consilience": chance.choice(texts)}, **dict(parts.entries)}
    return framed(json.dumps(entries, separators=(",", ":"), ensure_ascii=False), parts.body)


def other_fields(chance: random.Random, data: bytes) -> bytes:
    """A header that no member writes, with a digest that fits."""
    parts = Parts.of(data)
    fields = parts.metadata["fields"]
    about, groups = fields["about"].split(" "), json.loads(fields["groups"])
    digits, place = chance.choice(DIGITS), chance.randrange(2, 7)
    choices: list[dict[str, str]] = [
        {"about": " ".join([*about[:place], digits, *about[place + 1 :]])},
        {"about": " ".join([*about[:place], about[place].replace("0", "٠"), *about[place + 1 :]])},
        {"about": " ".join([*about[:place], about[place].replace("00", "0_", 1), *about[place + 1 :]])},
        {"about": " ".join([*about[:place], "-" + about[place][1:], *about[place + 1 :]])},
        {"about": fields["about"] + " "},
        {"about": fields["about"].replace(" ", "\t")},
        {"about": fields["about"].replace("-", "_")},
        {"about": "A" + fields["about"][1:]},
        {"about": " ".join([about[0], "other", *about[2:]])},
        {"groups": json.dumps(groups, separators=(",", ":")) + " "},
        {"groups": json.dumps([*groups, *groups, "x"])},
        {"groups": json.dumps([*groups, "a/b"])},
        {"groups": json.dumps([*groups, 1])},
        {"groups": json.dumps([*groups, []])},
        {"groups": json.dumps(dict.fromkeys(groups))},
        {"groups": json.dumps(groups[:-1] or ["x", "x"])},
        {"groups": MANY},
        {"groups": chance.choice(TEXTS)},
        {"more": ""},
    ]
    parts.metadata["fields"] = {**fields, **chance.choice(choices)}
    if chance.random() < 0.1:
        del parts.metadata["fields"][chance.choice(list(fields))]
    return parts.joined()


def other_entries(chance: random.Random, data: bytes) -> bytes:
    """Tensors with names, types, shapes or places that cannot be, with a digest that fits if there is one."""
    parts = Parts.of(data)
    name, entry = "params/w", {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    parts.body = bytes(8)
    shape = chance.choice(SHAPES)
    places = chance.choice([[8, 16], [8, 0], [0, 2**63], [0, 7], [-8, 0], [0, 8, 8], [0], [0.0, 8], [1, 9]])
    changed: list[tuple[str, dict[str, Any]]] = [
        (name, {**entry, "shape": shape}),
        (name, {**entry, "shape": shape, "data_offsets": [0, 0]}),
        (name, {**entry, "dtype": "U8", "shape": shape, "data_offsets": [0, 0]}),
        (name, {**entry, "data_offsets": places}),
        (name, {**entry, "dtype": chance.choice(["F128", "f32", "F4", "", "I64", "F32 ", "F" * 1000])}),
        (name, {**entry, "dtype": "BOOL", "shape": [8]}),
        (name, {**entry, "more": 1}),
        (name, {"dtype": "F32", "shape": [2]}),
        ("params/" + "w" * (heads.LONGEST_NAME + 1), entry),
        ("params/\ud800", entry),
        ("params", entry),
        ("other/w", entry),
        ("__metadata__", entry),
        ("", entry),
    ]
    name, entry = chance.choice(changed)
    if entry.get("dtype") == "BOOL":
        parts.body = bytes([0, 1, 2, 255, 0, 1, 1, chance.randrange(2, 256)])
    if entry["shape"] and entry.get("data_offsets") == [0, 0]:
        parts.body = b""
    parts.entries, parts.metadata["order"] = [(name, entry)], [name]
    parts.metadata["fields"] = {**parts.metadata["fields"], "groups": '["params"]'}
    try:
        parts.sign()
    except (KeyError, TypeError, ValueError, OverflowError):
        parts.metadata["sha256"] = "0" * 64
    entries = ",".join(written(*one) for one in parts.entries)
    if chance.random() < 0.2:
        entries += "," + entries
    metadata = written("__metadata__", {"consilience": json.dumps(parts.metadata)})
    return framed("{" + metadata + "," + entries + "}", parts.body)


def other_order(chance: random.Random, data: bytes) -> bytes:
    """Names in another order than groups and tensors can have, with a digest that fits."""
    parts = Parts.of(data)
    more = [("z/one", 0), ("params/x", 1), ("z/two", 2)]
    parts.body = b""
    parts.entries = [
        (name, {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}) for name, _ in sorted(more)
    ]
    order = [name for name, _ in more]
    chance.shuffle(order)
    parts.metadata["order"] = order
    groups = chance.choice([["z", "params"], ["params", "z"]])
    parts.metadata["fields"] = {**parts.metadata["fields"], "groups": json.dumps(groups)}
    return parts.joined()


def spliced(chance: random.Random, data: bytes) -> bytes:
    """The head of one frame and the tensors of another."""
    other = chance.choice(honest(1))
    return data[: 8 + int.from_bytes(data[:8], "little")] + other[8 + int.from_bytes(other[:8], "little") :]


WAYS = (flipped, cut, extended, shuffled, another_length, noise, other_json, other_metadata, other_fields)
WAYS = (*WAYS, other_entries, other_order, spliced)


def frames(count: int, seed: int = 0) -> Iterator[Frame]:
    """So many frames that no member sends, or not so; the same for the same seed."""
    originals = honest()
    known = {*originals, *honest(1)}
    chance = random.Random(seed)
    while count > 0:
        way = WAYS[count % len(WAYS)]
        data = way(chance, chance.choice(originals))
        if data not in known:  # a flip may have been undone by another, or a splice fit
            count -= 1
            yield way.__name__, data


def crowded(size: int = 200_000) -> Iterator[Frame]:
    """Frames that would become many objects, with digests that fit: so many tensors, lists and fields."""
    many = [f"params/{number}" for number in range(size)]
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    fields = Parts.of(honest()[0]).metadata["fields"]
    lists = "[" + "[]," * (4 * size) + "[]]"
    metadata = {"schema": wire.SCHEMA, "fields": fields, "order": many}
    yield f"{size:,} empty tensors", Parts(metadata, [(name, empty) for name in sorted(many)], b"").joined()
    yield "a list of lists", framed(written("__metadata__", {"consilience": lists}).join("{}"))
    yield "objects in a head", framed("{" + '"a":{},' * (2 * size) + '"b":{}}')
    parts = Parts.of(honest()[0])
    parts.metadata["fields"] = {**fields, "groups": lists}
    yield "groups of lists", parts.joined()
    parts.metadata["fields"] = {str(number): "" for number in range(size)}
    yield f"{size:,} fields", parts.joined()
