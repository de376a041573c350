"""One method for some rounds, then another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from consilience.algorithm import Algorithm, Inbox, Phase, Setting
from consilience.errors import UserError
from consilience.types import State

if TYPE_CHECKING:
    from consilience.client import Client


@final
@dataclass(frozen=True)
class Until(Algorithm):
    """A method for some rounds, then another that takes the model over.

    Both find their states from the start on; what the first one learns of its own stays where it is. A state
    of one name is one state, which the second takes over.
    """

    name: ClassVar[str] = "until"
    first: Algorithm
    rounds: int
    then: Algorithm

    def __post_init__(self) -> None:
        kinds = (("first", Algorithm), ("rounds", int), ("then", Algorithm))
        for name, kind in kinds:
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"until: {name} must be of type {kind.__name__}, not {getattr(self, name)!r}")
        if isinstance(self.then, Until) and self.then.rounds <= self.rounds:
            raise UserError(
                f"until: rounds count from the start of the run, so {self.then.first.name} would never run: "
                f"it begins after {self.rounds} rounds, {self.then.then.name} after {self.then.rounds}"
            )
        if self.rounds < 0:
            raise UserError(f"until: rounds must be at least 0, not {self.rounds}")
        for trait in ("personal", "personalised"):
            if getattr(self.first, trait) != getattr(self.then, trait):
                raise UserError(
                    f"until: {self.first.name} and {self.then.name} do not evaluate the same models"
                )

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """As both methods say."""
        return self.first.personal

    @property
    def personalised(self) -> bool:  # type: ignore[override]
        """As both methods say."""
        return self.first.personalised

    def init_hub(self, model: State) -> State:
        return self._both(self.first.init_hub(model), self.then.init_hub(model))

    def init_memory(self, model: State) -> State:
        return self._both(self.first.init_memory(model), self.then.init_memory(model))

    def init_link(self, model: State) -> State:
        return self._both(self.first.init_link(model), self.then.init_link(model))

    def _both(self, first: State, then: State) -> State:
        """States side by side; one that both have must be of one kind."""
        for group in first.keys() & then.keys():
            kinds = [
                {name: (v.shape, v.dtype) for name, v in state[group].items()} for state in (first, then)
            ]
            if kinds[0] != kinds[1]:
                raise UserError(
                    f"until: {self.first.name} and {self.then.name} both keep {group!r}, but of other shapes"
                )
        return {**then, **first}

    def broadcast(self, hub: State) -> State:
        return self.first.broadcast(hub)

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        raise NotImplementedError  # `at` says who is in force

    def combine(self, hub: State, inbox: Inbox) -> State:
        raise NotImplementedError

    def phases(self) -> tuple[Phase, ...]:
        """Those of the longer round; `at` says who is in force."""
        return max(self.first.phases(), self.then.phases(), key=len)

    def at(self, round_number: int) -> Algorithm:
        return self.first.at(round_number) if round_number < self.rounds else self.then.at(round_number)

    def model(self, hub: State, memory: State) -> State:
        return self.then.model(hub, memory)

    def personal_model(self, hub: State, memory: State) -> State:
        return self.then.personal_model(hub, memory)

    def refuse(self, setting: Setting) -> str | None:
        reasons = [
            f"{part.name}: {reason}" for part in (self.first, self.then) if (reason := part.refuse(setting))
        ]
        if self.first.setup() or self.then.setup():
            return "a method with an exchange before the first round cannot be followed or follow another"
        return next(iter(reasons), None)
