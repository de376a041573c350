"""The key `augment`: names with options, functions of one's own, or objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from consilience.config.options import read_part, write_part
from consilience.errors import check_options
from consilience.learning.augmentations import AUGMENTATIONS, Augmentation, Own
from consilience.plugins import is_reference, load, place_of


def read_augmentations(value: object) -> tuple[Augmentation, ...]:
    """The augmentations that a list stands for, or one alone."""
    if value is None:
        return ()
    entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(_one(entry) for entry in entries)


def _one(entry: object) -> Augmentation:
    if isinstance(entry, Augmentation):
        return entry
    if callable(entry):
        return _own(place_of(entry), entry, {})
    named = {"name": entry} if isinstance(entry, str) else entry
    if isinstance(named, Mapping) and is_reference(named.get("name")):
        path, options = str(named["name"]), {key: v for key, v in named.items() if key != "name"}
        found = load(path, AUGMENTATIONS.kind)
        if not isinstance(found, type) and callable(found):
            return _own(path, found, options)
    return read_part("augment", AUGMENTATIONS, named)


def _own(path: str, function: Callable[..., Any], options: dict[str, Any]) -> Own:
    check_options(f"augment {path}(inputs, key, ...)", function, 2, options)
    return Own(path, function, options)


def _written(chosen: Sequence[Augmentation]) -> list[dict[str, Any]]:
    return [
        {"name": one.path, **one.options} if isinstance(one, Own) else dict(write_part(one)) for one in chosen
    ]


_ENTRY = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}

AugmentField = Annotated[
    tuple[Augmentation, ...],
    PlainValidator(read_augmentations),
    PlainSerializer(_written, return_type=list),
    WithJsonSchema({"anyOf": [*_ENTRY["anyOf"], {"type": "array", "items": _ENTRY}]}),
]
