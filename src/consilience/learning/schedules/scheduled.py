"""A solver whose learning rate follows a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilience import sweeping
from consilience.learning.schedules.base import Schedule
from consilience.learning.solvers import Solver
from consilience.types import Number, Params, State

TIME = "time"
"""The group of a solver's state that counts steps and adds up their learning rates."""


@final
@dataclass(frozen=True)
class Scheduled(Solver):
    """A solver and its schedule, before a client has begun its round; `begun` gives what it trains with."""

    inner: Solver
    schedule: Schedule

    @property
    def lr(self) -> Number:  # type: ignore[override]
        """The rate that the schedule multiplies."""
        return self.inner.lr

    def begun(self, round_number: Tensor, steps: Tensor) -> Solver:
        """The solver of one round.

        Args:
            round_number: 0-d, the round, counted from 0.
            steps: 0-d, how many steps a local training of the client has.
        """
        if self.schedule.per == "step":
            return Stepped(self.inner, self.inner.lr, self.schedule, steps)
        rate = self.inner.lr * self.schedule.factor(round_number, steps)
        return sweeping.replace(self.inner, {"lr": rate})

    def init(self, params: Params) -> State:
        return self.inner.init(params)

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        return self.inner.update(params, grads, state)


@final
@dataclass(frozen=True)
class Stepped(Solver):
    """A solver whose rate changes from step to step of a local training."""

    stackable: ClassVar[bool] = False
    inner: Solver
    lr: Number
    """The rate that the schedule multiplies; it takes the place of the inner solver's."""
    schedule: Schedule
    steps: Number
    """0-d, how many steps a local training has."""

    def init(self, params: Params) -> State:
        some = next(iter(params.values()))
        zero = torch.zeros((), dtype=some.dtype, device=some.device)
        return {**self.inner.init(params), TIME: {"steps": zero, "rates": zero.clone()}}

    def rate(self, state: State) -> Number:
        now = state[TIME]["steps"]
        return self.lr * self.schedule.factor(now, now.new_zeros(()) + self.steps)

    def later(self, state: State) -> State:
        time = state[TIME]
        return {TIME: {"steps": time["steps"] + 1, "rates": time["rates"] + self.rate(state)}}

    def update(self, params: Params, grads: Params, state: State) -> tuple[Params, State]:
        solver = sweeping.replace(self.inner, {"lr": self.rate(state)})
        moved, after = solver.update(params, grads, state)
        return moved, {**after, **self.later(state)}
