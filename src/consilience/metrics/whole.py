"""A score that looks at all rows at once: any function, or a metric of torchmetrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from consilience.errors import UserError
from consilience.problems import Metric, Problem

Function = Callable[[Tensor, Tensor], "float | Tensor"]
"""A function of what a model gave for all rows and of what would have been right, both on the CPU."""


@runtime_checkable
class Accumulator(Protocol):
    """A metric in the manner of torchmetrics."""

    def reset(self) -> None:
        """Forget all rows."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take some rows."""

    def compute(self) -> Any:
        """The score of all rows."""


@dataclass(frozen=True)
class Whole:
    """A score that is computed model by model, from all of its rows."""

    metric: Metric
    function: Function

    def fault(self, problem: Problem) -> str | None:
        """Nothing is known against it."""
        return None

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """The score of some rows; a mistake in the function is one line with the score's name."""
        try:
            return float(self.function(outputs, targets))
        except Exception as error:
            raise UserError(
                f"metric {self.metric.name} of {len(targets)} rows: {type(error).__name__}: {error}; "
                "return nan where it is not defined"
            ) from error


def accumulated(accumulator: Accumulator) -> Function:
    """A function of all rows that asks an accumulator."""

    def function(outputs: Tensor, targets: Tensor) -> float | Tensor:
        accumulator.reset()
        accumulator.update(outputs, targets)
        found: float | Tensor = accumulator.compute()
        return found

    return function


def filled_in(kind: Callable[..., Any], options: dict[str, Any], problem: Problem, outputs: int) -> Any:
    """What a class of metrics makes of options and of what follows from the data, where it asks for that.

    Args:
        kind: The class.
        options: Its options as they were given.
        problem: What is to be learned, for `task`.
        outputs: How many numbers a model gives, for `num_classes`, `num_labels` and `num_outputs`.
    """
    task = "multilabel" if problem.name == "multi_label" else "multiclass"
    known = {"task": task, "num_classes": outputs, "num_labels": outputs}
    makers = [inspect.signature(kind)]
    if isinstance(kind, type) and "__new__" in vars(kind):  # where a task chooses among classes
        makers.append(inspect.signature(kind.__new__))
    asked = {name: one for maker in makers for name, one in maker.parameters.items()}
    missing = {
        name: value
        for name, value in known.items()
        if name in asked
        and name not in options
        and (problem.has_classes or name != "num_classes")
        and (not problem.has_classes or name != "num_labels")
    }
    try:
        return kind(**{**missing, **options})
    except (TypeError, ValueError) as error:
        raise UserError(f"metric {kind.__name__}: {error}") from None
