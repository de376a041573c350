"""The contract of a local optimiser: a pure function whose state is made anew every round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from consilience.sweeping import Sweepable
from consilience.types import Number, Params, State


class Solver(Sweepable, ABC):
    """How a client moves its parameters along a gradient."""

    name: ClassVar[str]
    stackable: ClassVar[bool] = False
    """Whether `update_in_place` treats coordinates alike, so that those of many clients can be stacked."""
    lr: Number

    def rate(self, state: State) -> Number:
        """The learning rate of the step that comes next."""
        return self.lr

    def later(self, state: State) -> State:
        """What counts steps, one step later; nothing where the rate does not change."""
        return {}

    @abstractmethod
    def init(self, params: Params) -> State:
        """The optimiser's state before the first step of a round."""

    @abstractmethod
    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        """The parameters and the state after one step."""

    def update_in_place(self, params: Params, grads: Params, state: State) -> None:
        """Write the numbers of `update` over the old ones; `grads` may be used up."""
        moved, after = self.update(params, grads, state)
        for name, value in moved.items():
            params[name].copy_(value)
        for group, values in after.items():
            for name, value in values.items():
                state[group][name].copy_(value)
