"""Whether the right class is among the few likeliest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from consilience.errors import UserError
from consilience.metrics.base import Score
from consilience.problems import Metric, Problem
from consilience.types import Params


@final
@dataclass(frozen=True)
class Top(Score):
    """The share of rows whose class is among the `k` with the largest outputs."""

    name: ClassVar[str] = "top"
    percent: ClassVar[bool] = True
    k: int = 5

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"metric top: k must be at least 1, not {self.k}")

    @property
    def metric(self) -> Metric:
        return Metric(f"top{self.k}", self.higher_is_better, self.percent)

    def fault(self, problem: Problem) -> str | None:
        return None if problem.has_classes else f"it is about classes, and {problem.name} has none"

    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        right = outputs.gather(-1, targets[:, None])
        # Counting those above it needs no order, and a tie is no mistake.
        among = (outputs > right).sum(-1) < self.k
        return {"among": (among.double() * weight).sum(), "rows": weight.double().sum()}

    def score(self, sums: Params) -> Tensor:
        return sums["among"] / sums["rows"]
