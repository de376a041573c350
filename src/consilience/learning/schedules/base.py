"""The contract of a schedule: what a learning rate is multiplied by, at some time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from consilience.sweeping import check_non_negative, is_zero

Per = Literal["round", "step"]
"""What time is counted in: rounds of the run, or steps of a local training, which begins at 0 every round."""


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Factors of a learning rate over time, as a frozen dataclass of numbers.

    They are computed with tensors, in the lanes in which clients train, so that numbers can be swept.

    Attributes:
        per: What time is counted in.
        warmup: How many rounds (or steps) the rate rises before the schedule begins, in equal parts.
    """

    name: ClassVar[str]
    per: Per = "round"
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_non_negative(self, "warmup")

    def over(self, rounds: int) -> Schedule:
        """The schedule for a run of so many rounds."""
        return self

    @property
    def stretches(self) -> bool:
        """Whether the number of a run's rounds decides what it does in each of them."""
        return False

    def factor(self, now: Tensor, steps: Tensor) -> Tensor:
        """0-d, the factor at a time.

        Args:
            now: 0-d, the rounds (or steps) that are over.
            steps: 0-d, how many steps a local training has.
        """
        if is_zero(self.warmup):
            return self.shape(now, steps)
        rising = ((now + 1) / self.warmup).clamp(max=1)
        after = self.shape((now - self.warmup).clamp(min=0), (steps - self.warmup).clamp(min=1))
        return torch.where(now < self.warmup, rising, after)

    @abstractmethod
    def shape(self, now: Tensor, steps: Tensor) -> Tensor:
        """The factor without a warm-up; what that takes has been taken from both arguments of `factor`."""
