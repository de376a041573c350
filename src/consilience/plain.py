"""Plain values, as configurations have them: numbers, texts, lists, mappings; as YAML, and within limits.

That is all there is of YAML: no aliases, a few hundred bytes of which stand for gigabytes; no other types;
no key twice.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from consilience.errors import UserError, abridged, said

MOST_CHARACTERS = 1 << 20
"""How long a file may be."""
MOST_VALUES = 100_000
"""How many values a configuration may have in all."""
LONGEST_TEXT, LONGEST_KEY = 10_000, 200
"""How many characters a text, and a key, may have."""
DEEPEST = 24
"""How many lists and mappings may be inside each other."""
LARGEST = 2**64
"""What whole numbers must stay below."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float"))
"""What an unquoted word may stand for beside a text; dates are texts."""
_TAGS = frozenset({None, "!", f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map", *_SCALARS})
"""The tags that a value may have."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # written in C, where there is one

_TURNING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Characters that turn the direction of a line, so that it reads as another."""

Place = tuple[object, ...]
"""The keys and numbers that lead to a value."""


def read_yaml(text: str, source: str) -> Any:
    """The plain values that a text in YAML stands for; a problem is a UserError of one line.

    Args:
        text: The text.
        source: What it is called in an error.
    """
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"{source}: more than {MOST_CHARACTERS:,} characters, which no configuration needs")
    try:
        loader = _Loader(text)
        try:
            value = _document(loader)
        finally:
            loader.dispose()
        check_plain(value)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is what is no text in UTF-8
        raise UserError(f"{source} is not valid YAML: {said(error)}") from None
    return value


def write_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as YAML, which `read_yaml` reads."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes what is there twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def check_plain(value: object, place: Place = ()) -> int:
    """Refuse what is beyond the limits in a value and in those inside it; how many there are.

    Objects that are no plain values are left to those who know them.
    """
    if len(place) > DEEPEST:
        raise UserError(f"{shown(place)}: more than {DEEPEST} levels, which no configuration needs")
    if isinstance(value, str):
        _check_text(value, place, LONGEST_TEXT)
    elif isinstance(value, int) and not -LARGEST < value < LARGEST:
        raise UserError(f"{shown(place)}: a whole number of {value.bit_length()} bits is too large")
    count = 1
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"{shown(place)}: a key must be text, not {abridged(key)}")
            _check_text(key, place, LONGEST_KEY)
            count += check_plain(inner, (*place, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            count += check_plain(inner, (*place, number))
    if count > MOST_VALUES:
        raise UserError(f"{shown(place)}: more than {MOST_VALUES:,} values, which no configuration needs")
    return count


def _check_text(text: str, place: Place, longest: int) -> None:
    if len(text) > longest:
        what = f"a text of {len(text):,} characters, and {longest:,} are the most"
        raise UserError(f"{shown(place)}: {abridged(text)} is {what}")
    for character in text:
        control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n\r"
        if control or unicodedata.bidirectional(character) in _TURNING:
            code = f"U+{ord(character):04X}"
            raise UserError(f"{shown(place)}: {abridged(text)} holds the character {code}, which is no text")


def shown(place: Place) -> str:
    """A place as a dotted key.

    >>> shown(("method", 0, "mu")), shown(())
    ('method.0.mu', 'the top')
    """
    return ".".join(map(str, place)) or "the top"


def _document(loader: Any) -> Any:
    """The one value of a text; None where there is nothing."""
    loader.get_event()  # the beginning
    if loader.check_event(yaml.StreamEndEvent):
        return None
    loader.get_event()  # that of the document
    value = _value(loader, ())
    loader.get_event()
    if not loader.check_event(yaml.StreamEndEvent):
        raise UserError("more than one document: one is wanted, so leave out what follows ---")
    return value


def _value(loader: Any, place: Place) -> Any:
    """The value that comes next, made from the parser's events: nothing is there before it was looked at."""
    event = loader.get_event()
    if isinstance(event, yaml.AliasEvent):
        raise UserError(f"{shown(place)}: the alias *{abridged(event.anchor)}: write the value itself")
    if event.tag not in _TAGS:
        raise UserError(f"{shown(place)}: the type {abridged(event.tag)}, which no configuration needs")
    if len(place) > DEEPEST:
        raise UserError(f"{shown(place)}: more than {DEEPEST} levels, which no configuration needs")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(loader, event, place)
    if isinstance(event, yaml.SequenceStartEvent):
        values: list[Any] = []
        while not loader.check_event(yaml.SequenceEndEvent):
            values.append(_value(loader, (*place, len(values))))
        loader.get_event()
        return values
    found: dict[str, Any] = {}
    while not loader.check_event(yaml.MappingEndEvent):
        line = loader.peek_event().start_mark.line + 1
        key = _value(loader, (*place, f"a key in line {line}"))
        if not isinstance(key, str):
            raise UserError(f"{shown(place)}: a key must be text, not {abridged(key)} (line {line})")
        if key in found:
            raise UserError(f"{shown((*place, key[:LONGEST_KEY]))} is there twice, again in line {line}")
        found[key] = _value(loader, (*place, key[:LONGEST_KEY]))
    loader.get_event()
    return found


def _scalar(loader: Any, event: Any, place: Sequence[object]) -> Any:
    tag = event.tag if event.tag in _SCALARS else None
    if event.tag is None:
        tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
    if tag not in _SCALARS:
        return event.value
    try:
        if len(event.value) > LONGEST_TEXT:  # a million digits between colons are as many products
            raise ValueError
        return loader.construct_object(yaml.ScalarNode(tag, event.value))
    except (
        ValueError,
        KeyError,
        IndexError,
        OverflowError,
    ):  # of too many digits, or of a tag that does not fit
        raise UserError(f"{shown(tuple(place))}: {abridged(event.value)} cannot be read as a value") from None
