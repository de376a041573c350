"""Named parts in a configuration: `{name: hwa, layers: output}`, or just `hwa`.

Everything a configuration can choose is a frozen dataclass in a registry. Its fields are its options; this
module reads, checks, sweeps, writes and describes them, for all kinds alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from consilience.config.hints import place_of
from consilience.errors import UserError, unknown
from consilience.plugins import REFERENCE, name_of

T = TypeVar("T")


def read_part(kind: str, registry: Mapping[str, type[T]], value: object) -> T:
    """The part that a name, or a mapping with a name and options, stands for.

    Args:
        kind: What such a part is called in errors, e.g. "model".
        registry: The parts of this kind, by name.
        value: What a configuration says.
    """
    name, options = _name_and_options(kind, value)
    if name not in registry:
        raise unknown(kind, name, registry)
    return make_part(kind, registry[name], options)


def make_part(kind: str, cls: type[T], options: Mapping[str, object], more: tuple[str, ...] = ()) -> T:
    """The part of a class with some options, which are checked.

    Args:
        kind: What such a part is called in errors, e.g. "model".
        cls: The class of the part.
        options: Values by the names of its fields.
        more: Keys that entries of this kind may have besides, for errors that say what is known.
    """
    name = getattr(cls, "name", cls.__name__)
    fields = option_types(cls)
    for key in options:
        if key not in fields:
            known = (*fields, *more)
            raise unknown(f"option of {kind} {name}", key, known, place_of(key, kind, known))
        if isinstance(options[key], bool) and not admits(fields[key], bool):
            raise UserError(f"{kind} {name}: {key}: expected a number or a name, not {options[key]}")
    try:
        part: T = TypeAdapter(cls).validate_python(dict(options))
    except ValidationError as error:
        ours = error.errors()[0]["type"] == "value_error"
        raise UserError(first_problem(error) if ours else f"{kind} {name}: {first_problem(error)}") from None
    return part


def first_problem(error: ValidationError) -> str:
    """The line that tells a user what pydantic found first."""
    problem = error.errors()[0]
    if problem["type"] == "value_error":  # one of our own checks: its message says it all
        return problem["msg"].removeprefix("Value error, ")
    # A union reports the branch it tried as a part of the place; names of fields are what a user knows.
    where = ".".join(str(step) for step in problem["loc"] if _is_key(step))
    given = problem.get("input")
    text = problem["msg"]
    if not isinstance(given, dict) and ", not " not in text:
        text += f", not {given!r}"
    return f"{where}: {text}" if where else text


def _is_key(step: object) -> bool:
    if isinstance(step, int):
        return True
    branches = {"int", "float", "str", "bool", "none"}
    return isinstance(step, str) and step.replace("_", "").isalnum() and step not in branches


def _name_and_options(kind: str, value: object) -> tuple[str, dict[str, object]]:
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping):
        options = {str(key): option for key, option in value.items()}
        name = options.pop("name", None)
        if isinstance(name, str):
            return name, options
        raise UserError(f"{kind}: a name is missing, e.g. {{name: ...}}")
    shown = value if isinstance(value, int | float | bool | None) else f"a {type(value).__name__}"
    raise UserError(f"{kind}: expected a name or {{name: ..., option: ...}}, not {shown}")


def option_types(cls: type) -> dict[str, object]:
    """The options of a part and their types."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def write_part(part: object) -> dict[str, object]:
    """The inverse of `read_part`, with every option spelled out."""
    written: dict[str, object] = {"name": name_of(part)}
    for field in dataclasses.fields(typing.cast(Any, part)):
        value = getattr(part, field.name)
        written[field.name] = write_part(value) if dataclasses.is_dataclass(value) else _plain(value)
    return written


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def admits(kind: object, wanted: type) -> bool:
    """Whether an option's type is, or includes, a plain type. A float option can be swept."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return any(admits(one, wanted) for one in typing.get_args(kind))
    return kind is wanted


@dataclass(frozen=True)
class Sweep(Generic[T]):
    """A part, or several variants that differ in numbers only: a list where a number is expected."""

    variants: tuple[T, ...]
    labels: tuple[str, ...]
    """What tells the variants apart, e.g. `mu=0.1`; empty for a single one."""
    written: dict[str, object]
    """What stands for it in a configuration, with every option spelled out."""


def grid(
    options: Mapping[str, object], kinds: Mapping[str, object]
) -> Iterator[tuple[dict[str, object], str]]:
    """Every combination of the lists given for numbers, each with a label of what differs."""
    lists = {key: v for key, v in options.items() if isinstance(v, list) and admits(kinds.get(key), float)}
    for key, values in lists.items():
        _check_values(key, values)
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        label = " ".join(f"{key}={value}" for key, value in chosen.items() if len(lists[key]) > 1)
        yield {**options, **chosen}, label


def _check_values(key: str, values: list[object]) -> None:
    """Refuse a list that is not one of different numbers."""
    if not values:
        raise UserError(f"{key}: the list of values is empty")
    numbers = {_number(key, value) for value in values}
    if len(numbers) != len(values):
        raise UserError(f"{key}: {values} names a value twice")


def _number(key: str, value: object) -> float:
    """The value of a sweep as a number; YAML reads 1e-3 as text."""
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except ValueError:
        pass
    raise UserError(f"{key}: a list here is a sweep over numbers, and {value!r} is not one")


def read_sweep(
    kind: str, registry: Mapping[str, type[T]], value: object, more: tuple[str, ...] = ()
) -> Sweep[T]:
    """The part that an entry stands for, in a variant for every combination of the lists among its numbers.

    Args:
        kind: What such a part is called in errors, e.g. "solver".
        registry: The parts of this kind, by name.
        value: What a configuration says: a name, or a mapping with a name and options.
        more: Keys that entries of this kind may have besides, for errors that say what is known.
    """
    name, options = _name_and_options(kind, value)
    if name not in registry:
        raise unknown(kind, name, registry)
    combined = list(grid(options, option_types(registry[name])))
    variants = tuple(make_part(kind, registry[name], chosen, more) for chosen, _ in combined)
    kinds = option_types(registry[name])
    lists = {key: v for key, v in options.items() if isinstance(v, list) and admits(kinds[key], float)}
    lists = {key: values for key, values in lists.items() if len(values) > 1}
    return Sweep(variants, tuple(label for _, label in combined), {**write_part(variants[0]), **lists})


JsonSchema = dict[str, Any]
"""A JSON schema."""


def part_schema(
    registry: Mapping[str, type[Any]],
    *,
    sweep: bool = False,
    more: Mapping[str, JsonSchema] | None = None,
    default: str | None = None,
) -> JsonSchema:
    """The JSON schema, for editors, of a part: a name, or an object with a name and that part's options.

    Args:
        registry: The parts to choose from, by name.
        sweep: Whether a number may be a list of numbers.
        more: Schemas of further keys that every such object may have.
        default: The part that is meant where an object has no name.
    """
    variants = []
    for name, cls in registry.items():
        properties = TypeAdapter(cls).json_schema().get("properties", {})
        if sweep:
            properties = {key: _or_list(schema) for key, schema in properties.items()}
        variant = _object_schema(name, cls, {**properties, **(more or {})})
        variants.append(variant if name == default else {**variant, "required": ["name"]})
    elsewhere = {"type": "string", "pattern": REFERENCE, "title": "package.module:Name"}
    own = {"type": "object", "properties": {"name": elsewhere, **(more or {})}, "required": ["name"]}
    return {"anyOf": [{"enum": sorted(registry)}, *variants, elsewhere, own]}


def _object_schema(name: str, cls: type, properties: dict[str, JsonSchema]) -> JsonSchema:
    return {
        "type": "object",
        "title": name,
        "description": (cls.__doc__ or "").strip().splitlines()[0],
        "properties": {"name": {"const": name}, **properties},
        "additionalProperties": False,
    }


def _or_list(schema: JsonSchema) -> JsonSchema:
    """The schema of an option, where a number may also be a list of numbers: a sweep."""
    choices = schema.get("anyOf", [schema])
    if not any(choice.get("type") == "number" for choice in choices):
        return schema
    rest = {key: value for key, value in schema.items() if key not in ("type", "anyOf")}
    plain = [{"type": choice["type"]} for choice in choices]
    return {**rest, "anyOf": [*plain, {"type": "array", "items": {"type": "number"}}]}
