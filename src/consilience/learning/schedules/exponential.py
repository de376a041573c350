"""A rate that falls by the same factor every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from consilience.learning.schedules.base import Schedule
from consilience.sweeping import check_non_negative


@final
@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """The factor gamma to the power of the rounds (or steps) that are over."""

    name: ClassVar[str] = "exponential"
    gamma: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "gamma")

    def shape(self, now: Tensor, steps: Tensor) -> Tensor:
        return self.gamma**now
