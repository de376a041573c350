"""The contract of a transform: what is sent in place of a method's upload?

A transform changes what a client sends after a method's own work; the method itself does not know. It acts
on a message's main group: the model where one is sent, else a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from consilience import tree
from consilience.algorithm import Algorithm, Inbox, Phase, Setting
from consilience.errors import UserError
from consilience.transforms.until import Until
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.client import Client

MODELS = ("params", "merged")
GROUPS = (*MODELS, "gradient")
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
        return tree.sub(main, self.start) if self.group in MODELS else main

    def with_update(self, update: Params) -> State:
        """The upload with another update."""
        assert self.group is not None
        main = tree.add(self.start, update) if self.group in MODELS else update
        return {**self.upload, self.group: main}


class Transform(ABC):
    """A change of messages, as a frozen dataclass of numbers. Called with an algorithm, it wraps it."""

    name: ClassVar[str]
    rebuilt: ClassVar[frozenset[str]] = frozenset()
    """Groups that are not sent: a receiver works them out from others, e.g. from a compressed form, or they
    are for the sender alone."""

    def init_memory(self, params: Params) -> State:
        """What a client keeps for this transform, of each exchange of a round."""
        return {}

    @abstractmethod
    def apply(self, message: Message, memory: State) -> tuple[State, State]:
        """What is sent instead, and what to remember."""

    def settle(self, old: State, new: State, inbox: Inbox) -> State:
        """What a node of a graph makes of the state that it combined from its old one and what it heard."""
        return new

    def refuse(self, setting: Setting) -> str | None:
        """Why this transform cannot work in a setting, or None."""
        return None

    def __call__(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with its messages changed."""
        if isinstance(algorithm, Until):  # the two may have other exchanges
            return replace(algorithm, first=self(algorithm.first), then=self(algorithm.then))
        return Transformed(algorithm, self)


@final
@dataclass(frozen=True)
class Transformed(Algorithm):
    """A method whose uploads go through a transform."""

    inner: Algorithm
    transform: Transform

    def __post_init__(self) -> None:
        if self.inner.cached.intersection(GROUPS):
            raise UserError(
                f"{self.name}: what is changed after messages were packed does not travel; pack them last"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The method, and what is done to its messages."""
        return f"{self.inner.name} {self.transform.name}"

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
        return tree.join(self.inner.init_memory(model), self._memories(model, replies=False))

    def init_link(self, model: State) -> State:
        return tree.join(self.inner.init_link(model), self._memories(model, replies=True))

    def _memories(self, model: State, *, replies: bool) -> State:
        """What is kept for this transform, of exchanges of replies or of the others."""
        own = self.transform.init_memory(model["params"])
        numbers = [number for number, one in enumerate(self.inner.phases()) if one.replies == replies]
        return {self._key(number, group): params for number in numbers for group, params in own.items()}

    def broadcast(self, hub: State) -> State:
        return self.inner.broadcast(hub)

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        raise NotImplementedError  # `phases` says what clients and hubs do

    def combine(self, hub: State, inbox: Inbox) -> State:
        raise NotImplementedError

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._changed(number, phase) for number, phase in enumerate(self.inner.phases()))

    def setup(self) -> tuple[Phase, ...]:
        return self.inner.setup()

    def at(self, round_number: int) -> Algorithm:
        return Transformed(self.inner.at(round_number), self.transform)

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

    def _own(self, exchange: int, memory: State) -> State:
        """What the transform remembers of an exchange."""
        prefix = self._key(exchange, "")
        return {g.removeprefix(prefix): params for g, params in memory.items() if g.startswith(prefix)}

    def _changed(self, exchange: int, phase: Phase) -> Phase:
        def local(client: Client, down: State, memory: State) -> tuple[State, State]:
            upload, kept = phase.local(client, down, self._of_method(memory))
            message = Message(client, upload, down.get("params", {}), exchange)
            if message.group is None:  # nothing to change, e.g. in a method that sends nothing
                return upload, {**memory, **kept}
            several = [group for group in GROUPS if group in upload]
            if self.transform.rebuilt.issuperset(several) and len(several) > 1:
                raise UserError(
                    f"{self.name}: one message has {' and '.join(several)}; only one can be packed"
                )
            sent, later = self.transform.apply(message, self._own(exchange, memory))
            renewed = {self._key(exchange, group): params for group, params in later.items()}
            return sent, {**memory, **kept, **renewed}

        def combine(hub: State, inbox: Inbox) -> State:
            new = phase.combine(hub, inbox)
            return new if inbox.own is None else self.transform.settle(hub, new, inbox)

        return phase._replace(local=local, combine=combine)
