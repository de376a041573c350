"""The key `stop_when`: scores that are enough, and how long to wait for a better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from consilience.errors import UserError, abridged


@dataclass(frozen=True)
class StopWhen:
    """When a replica (a seed of a variant) stops before its last round: as soon as anything here holds.

    Scores are looked at in rounds in which models are evaluated.
    """

    reached: Mapping[str, float] = field(default_factory=dict)
    """Values of scores that are enough, by name; `accuracy` means `test_accuracy`."""
    patience: int | None = None
    """The rounds for which a score may get no better; None: for ever."""
    metric: str | None = None
    """The score that patience is about; by default the problem's metric on the test set."""
    least: float = 0.0
    """How much better counts as better."""
    after: int = 0
    """The rounds before which nothing stops."""


OPTIONS = ("patience", "metric", "least", "after")


def read_stop_when(value: object) -> StopWhen:
    """The conditions that a mapping in a configuration stands for."""
    if isinstance(value, StopWhen):
        return value
    if not isinstance(value, Mapping) or not value:
        raise UserError("stop_when: expected e.g. {accuracy: 0.9} or {patience: 10, metric: accuracy}")
    given = {str(key): one for key, one in value.items()}
    reached = {key: _number(key, one) for key, one in given.items() if key not in OPTIONS}
    patience, metric = given.get("patience"), given.get("metric")
    if patience is not None and not (_whole(patience) and patience > 0):
        raise UserError(f"stop_when: patience is a number of rounds above 0, not {abridged(patience)}")
    if metric is not None and not isinstance(metric, str):
        raise UserError(f"stop_when: metric is the name of a score, not {abridged(metric)}")
    least, after = _number("least", given.get("least", 0.0)), given.get("after", 0)
    if least < 0:
        raise UserError(f"stop_when: least must be at least 0, not {least}")
    if not (_whole(after) and after >= 0):
        raise UserError(f"stop_when: after is a number of rounds, not {abridged(after)}")
    if patience is None and (metric is not None or "least" in given):
        raise UserError("stop_when: metric and least are about patience: give that, too")
    if patience is None and not reached:
        raise UserError("stop_when: nothing would stop a run: give a score's value or patience")
    return StopWhen(reached, patience, metric, least, after)


def written_stop_when(rule: StopWhen) -> dict[str, Any]:
    """What stands for conditions in a configuration."""
    waiting = {"patience": rule.patience, "metric": rule.metric, "least": rule.least}
    used = {key: value for key, value in waiting.items() if rule.patience is not None and value is not None}
    return {**rule.reached, **used, "after": rule.after}


def _number(key: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise UserError(f"stop_when: {key} is a number, not {abridged(value)}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


StopWhenField = Annotated[
    StopWhen,
    PlainValidator(read_stop_when),
    PlainSerializer(written_stop_when, return_type=dict),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "patience": {"type": "integer", "minimum": 1},
                "metric": {"type": "string"},
                "least": {"type": "number", "minimum": 0},
                "after": {"type": "integer", "minimum": 0},
            },
            "additionalProperties": {"type": "number"},
        }
    ),
]
