"""The JSON schema of configuration files, for editors: what is said twice is said once, under `$defs`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from consilience.config.config import Config
from consilience.config.options import JsonSchema

LONG = 100
"""How many characters of JSON a schema must have to be worth a reference."""


def config_schema() -> JsonSchema:
    """The schema of a configuration file."""
    return shared(Config.model_json_schema())


def shared(schema: JsonSchema) -> JsonSchema:
    """The same schema, in which long parts that occur several times are references to one place each."""
    counts: Counter[str] = Counter()

    def count(part: JsonSchema, name: str) -> JsonSchema:
        key = json.dumps(part)
        counts[key] += 1
        return _within(part, name, count) if counts[key] == 1 else part

    count(schema, "")
    names: dict[str, str] = {}
    places: dict[str, JsonSchema] = {}

    def refer(part: JsonSchema, name: str) -> JsonSchema:
        key = json.dumps(part)
        if counts[key] < 2 or len(key) < LONG:
            return _within(part, name, refer)
        if key not in names:
            names[key] = f"{name}-{len(names) + 1}"
            places[names[key]] = _within(part, name, refer)
        return {"$ref": f"#/$defs/{names[key]}"}

    whole = _within(schema, "", refer)
    return {**whole, "$defs": {**whole.get("$defs", {}), **places}}


def _within(schema: JsonSchema, name: str, change: Callable[[JsonSchema, str], JsonSchema]) -> JsonSchema:
    """A schema, known by a name, with those inside it changed; a property's own name is its key."""
    changed: dict[str, Any] = {}
    for word, value in schema.items():
        if word in ("properties", "$defs"):
            changed[word] = {key: change(inner, key) for key, inner in value.items()}
        elif word in ("anyOf", "prefixItems"):
            changed[word] = [change(inner, name) for inner in value]
        elif word == "items":
            changed[word] = change(value, name)
        else:
            changed[word] = value
    return changed
