"""A rate that falls from time to time, by the same factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from consilience.errors import UserError
from consilience.learning.schedules.base import Schedule
from consilience.sweeping import check_non_negative


@final
@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """The factor gamma to the power of how often `every` rounds (or steps) have passed."""

    name: ClassVar[str] = "step"
    every: float = 10.0
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "gamma")
        if isinstance(self.every, int | float) and not self.every > 0:
            raise UserError(f"schedule step: every must be above 0, not {self.every}")

    def shape(self, now: Tensor, steps: Tensor) -> Tensor:
        return self.gamma ** (now / self.every).floor()
