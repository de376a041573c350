"""The contract of a local optimiser: a pure function whose state is made anew every round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from consilience.types import Number, Params, State


class Solver(ABC):
    """How a client moves its parameters along a gradient."""

    name: ClassVar[str]
    stackable: ClassVar[bool] = False
    """Whether `update_in_place` treats every coordinate alike, so that many clients' can be stacked."""
    lr: Number

    @abstractmethod
    def init(self, params: Params) -> State:
        """The optimiser's state before the first step of a round."""

    @abstractmethod
    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        """One step: new parameters, new state."""

    def update_in_place(self, params: Params, grads: Params, state: State) -> None:
        """The same step written over the old numbers; `grads` may be used up."""
        moved, after = self.update(params, grads, state)
        for name, value in moved.items():
            params[name].copy_(value)
        for group, values in after.items():
            for name, value in values.items():
                state[group][name].copy_(value)
