"""The rate as it is, after a warm-up if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilience.learning.schedules.base import Schedule


@final
@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """A factor of 1."""

    name: ClassVar[str] = "constant"

    def shape(self, now: Tensor, steps: Tensor) -> Tensor:
        return torch.ones_like(now)
