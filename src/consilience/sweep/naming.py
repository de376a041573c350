"""Names of cells: what they vary, in words that can be a folder's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

LONGEST = 120
"""The most characters of a name that is spelled out; file systems allow 255."""


def name_of(varied: Mapping[str, object]) -> str:
    """The name of the cell that varies some keys, the same in whatever order these are given.

    Where something of the values is lost in it, a digest of them makes up for that.

    >>> name_of({"partition.alpha": 0.1, "model.hidden": [64, 32]})
    'model.hidden=64-32,partition.alpha=0.1'
    >>> name_of({"method": {"mu": 0.1, "name": "fedprox"}})
    'method=fedprox-mu=0.1'
    >>> name_of({"method.rule": "mine:Rule"})
    'method.rule=mine-Rule,fe6f35be'
    """
    plain = [(key, _words(varied[key])) for key in sorted(varied)]
    parts = [f"{key}={re.sub('[^A-Za-z0-9._=-]+', '-', words)}" for key, words in plain]
    name = ",".join(parts)
    if parts == [f"{key}={words}" for key, words in plain] and len(name) <= LONGEST:
        return name
    text = json.dumps(varied, sort_keys=True, default=str)
    return f"{name[:LONGEST]},{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _words(value: object) -> str:
    """A value of a configuration as words."""
    if isinstance(value, Mapping):
        named = [_words(value["name"])] if "name" in value else []
        return "-".join([*named, *(f"{k}={_words(v)}" for k, v in value.items() if k != "name")])
    if isinstance(value, list):
        return "-".join(map(_words, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
