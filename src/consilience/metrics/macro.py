"""Means over classes, in which a rare class counts as much as a frequent one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilience.metrics.base import Score
from consilience.problems import Problem
from consilience.types import Params


class _OverClasses(Score):
    """A mean over the classes that some row has, of a number that follows from how often they were met.

    A class that no row has would only say which classes a client happens to hold.
    """

    percent: ClassVar[bool] = True

    def fault(self, problem: Problem) -> str | None:
        return None if problem.has_classes else f"it is a mean over classes, and {problem.name} has none"

    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        counted = weight.double()[:, None]
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        there, said = ((one[:, None] == classes) * counted for one in (targets, outputs.argmax(-1)))
        return {"there": there.sum(0), "said": said.sum(0), "hits": (there * said).sum(0)}

    def score(self, sums: Params) -> Tensor:
        present = sums["there"] > 0
        each = self.of_class(sums["hits"], sums["said"], sums["there"])
        return torch.where(present, each, 0.0).sum(-1) / present.sum(-1)

    @abstractmethod
    def of_class(self, hits: Tensor, said: Tensor, there: Tensor) -> Tensor:
        """The number of every class.

        Args:
            hits: How many of its rows were taken for it.
            said: How many rows were taken for it.
            there: How many rows it has.
        """


@final
@dataclass(frozen=True)
class F1Macro(_OverClasses):
    """The mean over classes of 2 hits / (rows taken for the class + rows of the class)."""

    name: ClassVar[str] = "f1_macro"

    def of_class(self, hits: Tensor, said: Tensor, there: Tensor) -> Tensor:
        return 2 * hits / (said + there).clamp(min=1)


@final
@dataclass(frozen=True)
class PrecisionMacro(_OverClasses):
    """The mean over classes of hits / rows taken for the class; 0 where none was."""

    name: ClassVar[str] = "precision_macro"

    def of_class(self, hits: Tensor, said: Tensor, there: Tensor) -> Tensor:
        return hits / said.clamp(min=1)


@final
@dataclass(frozen=True)
class RecallMacro(_OverClasses):
    """The mean over classes of hits / rows of the class: balanced accuracy."""

    name: ClassVar[str] = "recall_macro"

    def of_class(self, hits: Tensor, said: Tensor, there: Tensor) -> Tensor:
        return hits / there.clamp(min=1)
