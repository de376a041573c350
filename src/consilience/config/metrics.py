"""Scores of one's own in a configuration: names, `package.module:name`, or objects from Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from consilience.config.options import check_count, read_part, write_part
from consilience.errors import UserError, abridged, check_options, kind_of, unknown
from consilience.metrics import METRICS, Score, Whole
from consilience.metrics.whole import Accumulator, accumulated, filled_in
from consilience.models.own import UNWRITTEN
from consilience.plugins import is_reference, load, place_of
from consilience.problems import PROBLEMS, Metric, Problem

Made = Score | Whole
Make = Callable[[Problem, int], Made]
"""A function that makes a score for a problem and a number of outputs."""

LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
OF_RECORDS = ("label", "higher_is_better", "percent")
"""Options that say how a score is recorded and shown, and not what it is."""


@dataclass(frozen=True)
class MetricChoice:
    """One entry of `metrics:`."""

    written: object
    """What stands for it in a configuration."""
    make: Make


def read_metrics(value: object) -> list[MetricChoice]:
    """The scores that the entries of `metrics:` stand for."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    check_count("metrics", len(value) if several else 1)  # type: ignore[arg-type]
    return [_read(entry) for entry in (value if several else [value])]  # type: ignore[attr-defined]


def _read(entry: object) -> MetricChoice:
    if isinstance(entry, MetricChoice):
        return entry
    if isinstance(entry, Score):
        return MetricChoice(write_part(entry), lambda *_: entry)
    if isinstance(entry, Mapping):
        return _named({str(key): option for key, option in entry.items()})
    if isinstance(entry, str):
        return _named({"name": entry})
    if isinstance(entry, type):
        return MetricChoice(place_of(entry), partial(_make, entry, entry.__name__, {}, {}))
    if callable(entry) or isinstance(entry, Accumulator):
        name = getattr(entry, "__name__", type(entry).__name__)
        if not isinstance(entry, Accumulator):
            check_options(f"metric {name}", entry, 2, ())
        # Nobody knows with which options an object was made, so no file can name it.
        of = place_of(entry)
        written = of if hasattr(entry, "__qualname__") else {"name": UNWRITTEN, "of": of}
        return MetricChoice(written, lambda *_: _whole(entry, name, {}))
    raise UserError(f"metrics: expected a name or a function, not {kind_of(entry)}")


def _named(options: dict[str, Any]) -> MetricChoice:
    name = options.get("name")
    if not isinstance(name, str):
        raise UserError("metrics: a name is missing, e.g. {name: f1_macro}")
    if name == UNWRITTEN:
        raise UserError(
            f"metrics: that of this run ({options.get('of')}) is an object of Python that no file names: "
            "continue with cs.run(..., metrics=the same, existing='resume')"
        )
    if not is_reference(name):
        if name not in METRICS:
            owners = [
                problem.name
                for problem in PROBLEMS.values()
                if name in (one.name for one in problem.named_scores())
            ]
            if owners:
                raise UserError(
                    f"metrics: {name} is a score that problems have by themselves ({', '.join(owners)}); "
                    f"others can be added: {', '.join(sorted(METRICS))}"
                )
            raise unknown("metric", name, METRICS)
        part = read_part("metric", METRICS, options)
        return MetricChoice(write_part(part), lambda *_: part)
    found: Any = load(name, "metric")
    shown = {key: options[key] for key in OF_RECORDS if key in options}
    rest = {key: v for key, v in options.items() if key not in (*OF_RECORDS, "name")}
    written = options if len(options) > 1 else name
    return MetricChoice(written, partial(_make, found, name.rpartition(":")[2], rest, shown))


def _make(
    found: Any, name: str, options: dict[str, Any], shown: dict[str, Any], problem: Problem, outputs: int
) -> Made:
    """The score that an imported object stands for, with options."""
    if isinstance(found, type):
        made = filled_in(found, options, problem, outputs)
    else:
        if callable(found):
            check_options(f"metric {name}", found, 2, options)  # outputs and targets
        made = partial(found, **options) if options else found
    if isinstance(made, Score):
        return made
    if not callable(made) and not isinstance(made, Accumulator):
        raise UserError(f"metrics: {name} is neither a function nor a metric, but {kind_of(made)}")
    return _whole(made, name, {**_told(found), **shown})


def _whole(made: Any, name: str, shown: dict[str, Any]) -> Whole:
    """The score of all rows, with what is known about how to show it."""
    shown = {**_told(made), **shown}
    label = str(shown.get("label", name))
    if not LABEL.fullmatch(label):
        raise UserError(
            f"metrics: {abridged(label)} cannot name a score: give it a label of letters, digits and _"
        )
    metric = Metric(label, bool(shown.get("higher_is_better", True)), bool(shown.get("percent", False)))
    return Whole(metric, accumulated(made) if isinstance(made, Accumulator) else made)


def _told(found: object) -> dict[str, Any]:
    """What a function or a metric says about itself."""
    told = {key: getattr(found, key, None) for key in OF_RECORDS[1:]}
    return {key: value for key, value in told.items() if isinstance(value, bool)}


MetricsField = Annotated[
    list[MetricChoice],
    PlainValidator(read_metrics),
    PlainSerializer(lambda choices: [choice.written for choice in choices], return_type=list),
    WithJsonSchema(
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}}
    ),
]


def made_for(choices: Sequence[MetricChoice], problem: Problem, outputs: int) -> tuple[Made, ...]:
    """The scores for a problem, once it is known that they fit it and each other."""
    made = tuple(choice.make(problem, outputs) for choice in choices)
    taken = set(problem.score_names)
    for one in made:
        name = one.metric.name
        if name in taken:
            raise UserError(f"metrics: {name} is already a score of this run; give the other one a label")
        fault = one.fault(problem)
        if fault:
            raise UserError(f"metric {name}: {fault}")
        taken.add(name)
    return made
