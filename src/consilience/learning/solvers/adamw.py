"""AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.learning.solvers.moments import Moments
from consilience.types import Params, State


@final
@dataclass(frozen=True)
class AdamW(Moments):
    """Adam with decoupled weight decay, as torch.optim.AdamW: decay shrinks parameters before they move."""

    name: ClassVar[str] = "adamw"
    weight_decay: float = 0.01

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        return self.step(params, grads, state, keep=1 - self.lr * self.weight_decay)
