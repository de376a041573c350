"""Named parts in a configuration: `{name: hwa, layers: output}`, or just `hwa`.

Everything a configuration can choose is a frozen dataclass in a registry. Its fields are its options; this
module reads, checks, sweeps, writes and describes them, for all kinds alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from consilience.config.hints import place_of
from consilience.errors import UserError, abridged, kind_of, unknown
from consilience.plugins import REFERENCE, name_of
from consilience.sweeping import (
    admits,
    apart,
    as_list,
    has_lists,
    is_part,
    label_of,
    option_types,
    takes_number,
)

T = TypeVar("T")

MOST_VARIANTS = 1000
"""How many variants of a part, of all methods, or of a setting there may be in one run."""


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
        if fields[key] is bool and not isinstance(options[key], bool):
            found = abridged(options[key])
            raise UserError(
                f"{kind} {name}: {key}: Input should be a valid boolean, true or false, not {found}"
            )
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
        text += f", not {abridged(given)}"
    return f"{where}: {text}" if where else text


def problem_of(error: ValidationError, whole: type[BaseModel]) -> str:
    """The same, where a key may be one that a section of the whole does not have: then with those it has."""
    problem = error.errors()[0]
    if problem["type"] != "extra_forbidden":
        return first_problem(error)
    path, section = problem["loc"][:-1], whole
    for step in path:
        kind = section.model_fields[str(step)].annotation
        section = next(
            one
            for one in (kind, *typing.get_args(kind))
            if isinstance(one, type) and issubclass(one, BaseModel)
        )
    shown = [name for name in section.model_fields if name not in ("own", "numbers")]
    valid = [".".join([*map(str, path), name]) for name in shown]
    return str(unknown("key", ".".join(map(str, problem["loc"])), valid, place_of(str(problem["loc"][-1]))))


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
    shown = value if isinstance(value, int | float | bool | None) else kind_of(value)
    raise UserError(f"{kind}: expected a name or {{name: ..., option: ...}}, not {shown}")


def write_part(part: object) -> dict[str, object]:
    """The inverse of `read_part`, with every option spelled out."""
    written: dict[str, object] = {"name": name_of(part)}
    for field in dataclasses.fields(typing.cast(Any, part)):
        value = getattr(part, field.name)
        written[field.name] = write_part(value) if dataclasses.is_dataclass(value) else _plain(value)
    return written


def _plain(value: object) -> object:
    values = as_list(value)
    return value if values is None else values


@dataclass(frozen=True)
class Sweep(Generic[T]):
    """A part, or several variants that differ in numbers only: a list where a number is expected."""

    variants: tuple[T, ...]
    numbers: tuple[dict[str, object], ...]
    """What tells each of the variants apart, e.g. `{"mu": 0.1}`; nothing for a single one."""
    written: dict[str, object]
    """What stands for it in a configuration, with every option spelled out."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The numbers in words, e.g. `mu=0.1`."""
        return tuple(map(label_of, self.numbers))


def grid(
    options: Mapping[str, object], kinds: Mapping[str, object]
) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    """Every combination of the lists given for numbers, each with the numbers that differ."""
    lists = lists_in(options, {key: kind for key, kind in kinds.items() if admits(kind, float)})
    for chosen in combinations(lists):
        yield {**options, **chosen}, {key: chosen[key] for key in chosen if len(lists[key]) > 1}


def lists_in(options: Mapping[str, object], kinds: Mapping[str, object]) -> dict[str, list[object]]:
    """The lists among some options where a number is expected, as lists of different numbers.

    Args:
        options: Values by the names of options.
        kinds: The types of options; only those that are here and take a number are looked at.
    """
    return {
        key: read_values(key, values)
        for key, value in options.items()
        if (values := as_list(value)) is not None and takes_number(kinds.get(key))
    }


def combinations(lists: Mapping[str, list[object]]) -> Iterator[dict[str, object]]:
    """Every choice of one number from each list; a single empty one where there is no list."""
    check_count(", ".join(lists), math.prod(map(len, lists.values())))
    for combination in itertools.product(*lists.values()):
        yield dict(zip(lists, combination, strict=True))


def check_count(what: str, count: int) -> None:
    """Refuse more variants than anybody compares, before they are made."""
    if count > MOST_VARIANTS:
        raise UserError(
            f"{what}: {count:,} variants, and {MOST_VARIANTS:,} are the most in one run; try fewer values"
        )


def read_values(key: str, values: list[object]) -> list[object]:
    """The numbers of a sweep; a list that is not one of different numbers is refused."""
    if not values:
        raise UserError(f"{key}: the list of values is empty")
    check_count(key, len(values))
    numbers: list[object] = [_number(key, value) for value in values]
    if len(set(numbers)) != len(numbers):
        raise UserError(f"{key}: {abridged(values)} names a value twice")
    return numbers


def _number(key: str, value: object) -> float:
    """The value of a sweep as a number; YAML reads 1e-3 as text."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if isinstance(value, str):
            return float(value)
    except ValueError:
        pass
    raise UserError(f"{key}: a list here is a sweep over numbers, and {abridged(value)} is not one")


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
    numbers = tuple(differing for _, differing in combined)
    lists = {key: list(dict.fromkeys(one[key] for one in numbers)) for key in numbers[0]}
    return Sweep(variants, numbers, {**write_part(variants[0]), **lists})


def sweep_of(part: T) -> Sweep[T]:
    """The variants that an object with lists in place of numbers stands for, also in parts of it."""
    if not has_lists(part):
        return Sweep((part,), ({},), write_part(part))
    kinds, choices = option_types(type(part)), dict[str, list[tuple[object, dict[str, object]]]]()
    for name, kind in kinds.items():
        value = getattr(part, name)
        if is_part(value):
            inner = sweep_of(value)
            choices[name] = list(zip(inner.variants, inner.numbers, strict=True))
        elif (values := as_list(value)) is not None and admits(kind, float):
            numbers = read_values(name, values)
            choices[name] = [(number, {name: number} if len(numbers) > 1 else {}) for number in numbers]
    variants, told = [], []
    check_count(", ".join(choices), math.prod(map(len, choices.values())))
    for combination in itertools.product(*choices.values()):
        chosen = dict(zip(choices, (value for value, _ in combination), strict=True))
        variants.append(dataclasses.replace(typing.cast(Any, part), **chosen))
        own: dict[str, object] = {}
        for name, (_, differing) in zip(choices, combination, strict=True):
            own = apart(own, differing, name)
        told.append(own)
    return Sweep(tuple(variants), tuple(told), write_part(part))


JsonSchema = dict[str, Any]
"""A JSON schema."""
FLOATS, NUMBERS = ("number",), ("number", "integer")
"""Types in the words of a schema: what one computation can sweep, and what can be swept at all."""


def part_schema(
    registry: Mapping[str, type[Any]],
    *,
    sweep: Sequence[str] = (),
    more: Mapping[str, JsonSchema] | None = None,
    default: str | None = None,
) -> JsonSchema:
    """The JSON schema, for editors, of a part: a name, or an object with a name and that part's options.

    Args:
        registry: The parts to choose from, by name.
        sweep: The types of options, in the words of a schema, that may be lists of such numbers.
        more: Schemas of further keys that every such object may have.
        default: The part that is meant where an object has no name.
    """
    variants = []
    for name, cls in registry.items():
        properties = TypeAdapter(cls).json_schema().get("properties", {})
        if sweep:
            properties = {key: _or_list(schema, sweep) for key, schema in properties.items()}
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


def _or_list(schema: JsonSchema, kinds: Sequence[str] = NUMBERS) -> JsonSchema:
    """The schema of an option, where a number may also be a list of numbers: a sweep."""
    choices = schema.get("anyOf") or [{key: value for key, value in schema.items() if key not in _ABOUT}]
    if not any(choice.get("type") in kinds for choice in choices):
        return schema
    about = {key: value for key, value in schema.items() if key in _ABOUT}
    return {**about, "anyOf": [*choices, {"type": "array", "items": {"type": "number"}}]}


_ABOUT = ("title", "description", "default")
"""What a JSON schema says about an option beside its type."""


def allow_lists(*names: str) -> Callable[[JsonSchema], None]:
    """What lets the JSON schema of a section have lists for its numbers; for all of them if none is named."""

    def change(schema: JsonSchema) -> None:
        properties = schema["properties"]
        for name in names or properties:
            properties[name] = _or_list(properties[name])

    return change
