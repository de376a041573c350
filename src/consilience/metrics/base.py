"""The contract of a score of one's own: what is summed over rows, and what follows from the sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from consilience.problems import Metric, Problem
from consilience.types import Params


class Score(ABC):
    """A score from sums over rows, as a frozen dataclass of options.

    It is counted batch by batch and for many models at once, as a problem's own scores are. One that needs
    all rows at a time is a plain function instead (`Whole`).
    """

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = False
    """Whether it is a share, shown in per cent."""

    @property
    def metric(self) -> Metric:
        """What records and tables call it, and which values are good."""
        return Metric(self.name, self.higher_is_better, self.percent)

    def fault(self, problem: Problem) -> str | None:
        """Why the score makes no sense for a problem, in a few words; None where it does."""
        return None

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        """Sums over the rows of a batch, in float64: the arguments are those of `Problem.tally`."""

    @abstractmethod
    def score(self, sums: Params) -> Tensor:
        """The score, from sums with any leading axes; NaN where they do not define it."""
