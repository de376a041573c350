"""The contract of a transform: what is sent in place of a method's upload?

A transform changes what a client sends after a method's own work; the method itself does not know. It acts
on a message's main group: the parameters where they are sent, else a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from consilience import tree
from consilience.algorithm import Algorithm, Inbox, Phase, Setting
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.client import Client

GROUPS = ("params", "gradient")
"""What a transform acts on: the first of these that a message has."""


class Message(NamedTuple):
    """An upload on its way."""

    client: Client
    upload: State
    start: Params
    """The parameters that the client received (its own ones on a graph)."""
    exchange: int
    """Its number within the round."""

    @property
    def group(self) -> str | None:
        """The name of the main group; None where there is none."""
        return next((group for group in GROUPS if group in self.upload), None)

    @property
    def update(self) -> Params:
        """What the main group says: how far the parameters moved, or the gradient."""
        assert self.group is not None
        main = self.upload[self.group]
        return tree.sub(main, self.start) if self.group == "params" else main

    def with_update(self, update: Params) -> State:
        """The upload with another update."""
        assert self.group is not None
        main = tree.add(self.start, update) if self.group == "params" else update
        return {**self.upload, self.group: main}


class Transform(ABC):
    """A change of messages, as a frozen dataclass of numbers. Called with an algorithm, it wraps it."""

    name: ClassVar[str]
    rebuilt: ClassVar[frozenset[str]] = frozenset()
    """Groups that a receiver works out from others, e.g. from a compressed form: they are not sent."""

    def init_memory(self, params: Params) -> State:
        """What a client keeps for this transform, of each exchange of a round."""
        return {}

    @abstractmethod
    def apply(self, message: Message, memory: State) -> tuple[State, State]:
        """What is sent instead, and what to remember."""

    def refuse(self, setting: Setting) -> str | None:
        """Why this transform cannot work in a setting, or None."""
        return None

    def __call__(self, algorithm: Algorithm) -> Transformed:
        """The algorithm with its messages changed."""
        return Transformed(algorithm, self)


@final
@dataclass(frozen=True)
class Transformed(Algorithm):
    """A method whose uploads go through a transform."""

    name: ClassVar[str] = "transformed"
    inner: Algorithm
    transform: Transform

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """As the method says."""
        return self.inner.personal

    @property
    def personalised(self) -> bool:  # type: ignore[override]
        """As the method says."""
        return self.inner.personalised

    @property
    def cached(self) -> frozenset[str]:  # type: ignore[override]
        """What the method's receivers keep, and what they work out."""
        return self.inner.cached | self.transform.rebuilt

    def init_hub(self, model: State) -> State:
        return self.inner.init_hub(model)

    def init_memory(self, model: State) -> State:
        own = self.transform.init_memory(model["params"])
        exchanges = range(len(self.inner.phases()))
        return tree.join(
            self.inner.init_memory(model),
            {self._key(number, group): params for number in exchanges for group, params in own.items()},
        )

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        raise NotImplementedError  # `phases` says what clients do

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._changed(number, phase) for number, phase in enumerate(self.inner.phases()))

    def setup(self) -> tuple[Phase, ...]:
        return self.inner.setup()

    def at(self, round_number: int) -> Algorithm:
        return Transformed(self.inner.at(round_number), self.transform)

    def combine(self, hub: State, inbox: Inbox) -> State:
        return self.inner.combine(hub, inbox)

    def model(self, hub: State, memory: State) -> State:
        return self.inner.model(hub, self._of_method(memory))

    def personal_model(self, hub: State, memory: State) -> State:
        return self.inner.personal_model(hub, self._of_method(memory))

    def refuse(self, setting: Setting) -> str | None:
        return self.inner.refuse(setting) or self.transform.refuse(setting)

    def _key(self, exchange: int, group: str) -> str:
        return f"{self.transform.name}.{exchange}.{group}"

    def _of_method(self, memory: State) -> State:
        """What the method itself remembers."""
        prefix = f"{self.transform.name}."
        return {group: params for group, params in memory.items() if not group.startswith(prefix)}

    def _changed(self, exchange: int, phase: Phase) -> Phase:
        def local(client: Client, down: State, memory: State) -> tuple[State, State]:
            start = down.get("params", {})
            upload, kept = phase.local(client, down, self._of_method(memory))
            message = Message(client, upload, start, exchange)
            if message.group is None:  # nothing to change, e.g. in a method that sends nothing
                return upload, {**memory, **kept}
            own = {group: memory[self._key(exchange, group)] for group in self.transform.init_memory(start)}
            sent, later = self.transform.apply(message, own)
            renewed = {self._key(exchange, group): params for group, params in later.items()}
            return sent, {**memory, **kept, **renewed}

        return Phase(phase.broadcast, local, phase.combine)
