"""Half a cosine from the full rate down (Loshchilov and Hutter, SGDR, ICLR 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

from torch import Tensor

from consilience.errors import UserError
from consilience.learning.schedules.base import Schedule
from consilience.sweeping import check_non_negative


@final
@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """The factor floor + (1 - floor) (1 + cos(pi now / length)) / 2, and the floor from then on.

    Attributes:
        floor: What is left of the rate in the end.
        length: The round (or step) at which that is so, warm-up included; by default the run's number of
            rounds (or the local training's of steps).
    """

    name: ClassVar[str] = "cosine"
    floor: float = 0.0
    length: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "floor")
        if isinstance(self.length, int | float) and not self.length > 0:
            raise UserError(f"schedule cosine: length must be above 0, not {self.length}")

    def over(self, rounds: int) -> Schedule:
        return replace(self, length=float(rounds)) if self.stretches else self

    @property
    def stretches(self) -> bool:
        return self.per == "round" and self.length is None

    def shape(self, now: Tensor, steps: Tensor) -> Tensor:
        length = (
            steps if self.length is None else (now.new_zeros(()) + self.length - self.warmup).clamp(min=1)
        )
        bent = (1 + (math.pi * (now / length).clamp(max=1)).cos()) / 2
        return self.floor + (1 - self.floor) * bent
