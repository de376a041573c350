"""One method for some rounds, then another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience import sweeping
from consilience.algorithm import Algorithm, Conditions, Phase, Wrapper
from consilience.errors import UserError
from consilience.types import State


@final
@dataclass(frozen=True)
class Until(Wrapper):
    """A method for some rounds, then another that takes the model over.

    The states of both are there from the start; what the first one learns of its own stays where it is. A
    state that both have by one name is one state, which the second takes over.
    """

    name: ClassVar[str] = "until"
    rounds: int
    """How many rounds of the run the first method has."""
    then: Algorithm
    """The method that follows."""

    def __post_init__(self) -> None:
        kinds = (
            ("first", self.inner, Algorithm),
            ("rounds", self.rounds, int),
            ("then", self.then, Algorithm),
        )
        for name, value, kind in kinds:
            if not isinstance(value, kind):
                raise UserError(f"until: {name} must be of type {kind.__name__}, not {value!r}")
        if isinstance(self.then, Until) and self.then.rounds <= self.rounds:
            raise UserError(
                f"until: rounds count from the start of the run, so {self.then.inner.label} would never run: "
                f"it begins after {self.rounds} rounds, {self.then.then.label} after {self.then.rounds}"
            )
        if self.rounds < 0:
            raise UserError(f"until: rounds must be at least 0, not {self.rounds}")
        if self.inner.evaluated() != self.then.evaluated():
            raise UserError(f"until: {self._names} do not evaluate the same models")

    @property
    def label(self) -> str:
        return self.name

    @property
    def _names(self) -> str:
        return f"{self.inner.label} and {self.then.label}"

    def for_data(self, inputs: tuple[int, ...], classes: int) -> Algorithm:
        return self._each(self.inner.for_data(inputs, classes), self.then.for_data(inputs, classes))

    def for_model(self, model: State, l2: float = 0.0) -> Algorithm:
        return self._each(self.inner.for_model(model, l2), self.then.for_model(model, l2))

    def fleeting(self) -> frozenset[str]:
        return self.inner.fleeting() & self.then.fleeting()  # what one of them may need longer stays

    def reshapes(self) -> bool:
        return self.inner.reshapes() or self.then.reshapes()

    def linear_only(self) -> bool:
        return self.inner.linear_only() or self.then.linear_only()

    def quick(self) -> Algorithm:
        return self._each(self.inner.quick(), self.then.quick())

    def _each(self, inner: Algorithm, then: Algorithm) -> Algorithm:
        return sweeping.replace(self, {"inner": inner, "then": then})

    def init_hub(self, model: State) -> State:
        return self._both(self.inner.init_hub(model), self.then.init_hub(model))

    def init_memory(self, model: State) -> State:
        return self._both(self.inner.init_memory(model), self.then.init_memory(model))

    def init_link(self, model: State) -> State:
        return self._both(self.inner.init_link(model), self.then.init_link(model))

    def _both(self, first: State, then: State) -> State:
        """The states of both methods side by side; one that both have must be of one kind."""
        for group in first.keys() & then.keys():
            kinds = [
                {name: (v.shape, v.dtype) for name, v in state[group].items()} for state in (first, then)
            ]
            if kinds[0] != kinds[1]:
                raise UserError(f"until: {self._names} both keep {group!r}, but of other shapes")
        return {**then, **first}

    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of the longer round; `at` says who is in force."""
        return max(self.inner.phases(), self.then.phases(), key=len)

    def at(self, round_number: int) -> Algorithm:
        return (self.inner if round_number < self.rounds else self.then).at(round_number)

    def model(self, hub: State, memory: State) -> State:
        return self.then.model(hub, memory)

    def personal_model(self, hub: State, memory: State) -> State:
        return self.then.personal_model(hub, memory)

    def refuse(self, conditions: Conditions) -> str | None:
        reasons = [
            f"{part.label}: {reason}"
            for part in (self.inner, self.then)
            if (reason := part.refuse(conditions))
        ]
        if self.inner.setup() or self.then.setup():
            return "a method with an exchange before the first round cannot be followed or follow another"
        if self.reshapes():
            return "a method whose states change their shapes cannot be followed or follow another"
        return next(iter(reasons), None)
