"""How fields that hold named parts are read, written and described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from consilience.config.entries import MethodChoice, method_schema, read_method
from consilience.config.options import (
    FLOATS,
    NUMBERS,
    Sweep,
    check_count,
    part_schema,
    read_part,
    read_sweep,
    sweep_of,
    write_part,
)
from consilience.config.overrides import DEFAULT_PARTS
from consilience.data.partitioners import PARTITIONERS, Partitioner
from consilience.errors import UserError, abridged
from consilience.graphs import TOPOLOGIES
from consilience.graphs.base import Topology
from consilience.learning.schedules import SCHEDULES, Schedule
from consilience.learning.solvers import SOLVERS, Solver
from consilience.models import MODELS, ModelSpec
from consilience.models.own import OwnModel, read_own
from consilience.plugins import REFERENCE, name_of
from consilience.problems import PROBLEMS, Problem
from consilience.tracking import TRACKERS, Tracker


@dataclass(frozen=True)
class _Described:
    """A field's description, made when somebody asks for it: all of them take longer than to read a file."""

    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        return self.schema()


def _one(
    kind: str, registry: Mapping[str, type[Any]], base: type, *, sweep: Sequence[str] = ()
) -> tuple[Any, ...]:
    """How a field that holds one named part is read, written and described."""
    return (
        PlainValidator(lambda value: value if isinstance(value, base) else read_part(kind, registry, value)),
        PlainSerializer(write_part, return_type=dict),
        _Described(partial(part_schema, registry, sweep=sweep)),
    )


def read_solver(value: object) -> Sweep[Solver]:
    """The solver, or several that differ in numbers, for an entry in a configuration or for an object.

    Options without a name are those of the default solver.
    """
    if isinstance(value, Sweep):
        return value
    if isinstance(value, Solver):
        if SOLVERS.get(name_of(value)) is not type(value):
            return sweep_of(value)
        value = write_part(value)
    if isinstance(value, Mapping) and "name" not in value:
        value = {"name": DEFAULT_PARTS["solver"], **value}
    return read_sweep("solver", SOLVERS, value)


def read_schedule(value: object) -> Sweep[Schedule]:
    """The schedule, or several that differ in numbers, for an entry in a configuration or for an object."""
    if isinstance(value, Sweep):
        return value
    if isinstance(value, Schedule):
        if SCHEDULES.get(name_of(value)) is not type(value):
            return sweep_of(value)
        value = write_part(value)
    return read_sweep("schedule", SCHEDULES, value)


def _read_methods(value: object) -> list[MethodChoice]:
    entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    choices: list[MethodChoice] = []
    for entry in entries:
        choices.append(read_method(entry))
        check_count("method", sum(len(choice.sweep.variants) for choice in choices))
    if not choices:
        raise UserError("method: the list is empty")
    labels = [choice.label for choice in choices]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UserError(f"method: {abridged(twice)} is there twice; give one of them a label")
    return choices


def _read_trackers(value: object) -> list[Tracker]:
    entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [one if isinstance(one, Tracker) else read_part("tracking", TRACKERS, one) for one in entries]


def read_model(value: object) -> ModelSpec | OwnModel:
    """A model of this library or of one's own."""
    if isinstance(value, ModelSpec):
        return value
    return read_own(value) or read_part("model", MODELS, value)


def _write_model(model: ModelSpec | OwnModel) -> dict[str, object]:
    return model.written() if isinstance(model, OwnModel) else write_part(model)


def _model_schema() -> dict[str, Any]:
    own = {
        "type": "object",
        "title": "package.module:Name",
        "description": "A model of one's own, with options for what makes it.",
        "properties": {"name": {"type": "string", "pattern": REFERENCE}},
        "required": ["name"],
    }
    return {"anyOf": [*part_schema(MODELS)["anyOf"], own]}


PartitionerField = Annotated[Partitioner, *_one("partition", PARTITIONERS, Partitioner, sweep=NUMBERS)]
ModelField = Annotated[
    ModelSpec | OwnModel,
    PlainValidator(read_model),
    PlainSerializer(_write_model, return_type=dict),
    _Described(_model_schema),
]
ProblemField = Annotated[Problem, *_one("problem", PROBLEMS, Problem)]
TopologyField = Annotated[Topology, *_one("topology", TOPOLOGIES, Topology, sweep=NUMBERS)]
SolverField = Annotated[
    Sweep[Solver],
    PlainValidator(read_solver),
    PlainSerializer(lambda sweep: sweep.written, return_type=dict),
    _Described(partial(part_schema, SOLVERS, sweep=FLOATS, default=DEFAULT_PARTS["solver"])),
]
TrackersField = Annotated[
    list[Tracker],
    PlainValidator(_read_trackers),
    PlainSerializer(lambda trackers: [write_part(one) for one in trackers], return_type=list),
    _Described(lambda: {"anyOf": [part_schema(TRACKERS), {"type": "array", "items": part_schema(TRACKERS)}]}),
]
ScheduleField = Annotated[
    Sweep[Schedule],
    PlainValidator(read_schedule),
    PlainSerializer(lambda sweep: sweep.written, return_type=dict),
    _Described(partial(part_schema, SCHEDULES, sweep=FLOATS)),
]
MethodsField = Annotated[
    list[MethodChoice],
    PlainValidator(_read_methods),
    PlainSerializer(lambda choices: [choice.sweep.written for choice in choices], return_type=list),
    _Described(lambda: {"anyOf": [method_schema(), {"type": "array", "items": method_schema()}]}),
]
