"""One method for some rounds, then another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from consilience.algorithm import Algorithm, Inbox, Setting
from consilience.errors import UserError
from consilience.types import State

if TYPE_CHECKING:
    from consilience.client import Client


@final
@dataclass(frozen=True)
class Until(Algorithm):
    """A method for some rounds, then another that takes the model over.

    Both find their states from the start on; what the first one learns of its own stays where it is.
    """

    name: ClassVar[str] = "until"
    first: Algorithm
    rounds: int
    then: Algorithm

    def __post_init__(self) -> None:
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
        return {**self.then.init_hub(model), **self.first.init_hub(model)}

    def init_memory(self, model: State) -> State:
        return {**self.then.init_memory(model), **self.first.init_memory(model)}

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        raise NotImplementedError  # `at` says who is in force

    def combine(self, hub: State, inbox: Inbox) -> State:
        raise NotImplementedError

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
