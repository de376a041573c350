"""Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience import tree
from consilience.learning.solvers.moments import Moments
from consilience.sweeping import is_zero
from consilience.types import Params, State


@final
@dataclass(frozen=True)
class Adam(Moments):
    """Adam with bias correction, as torch.optim.Adam: weight decay is a part of the gradient."""

    name: ClassVar[str] = "adam"

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        if not is_zero(self.weight_decay):
            grads = tree.axpy(self.weight_decay, params, grads)
        return self.step(params, grads, state)
