"""The contract of a transform: what is sent in place of a method's upload?

A transform changes what a client sends after a method's own work; the method itself does not know. It acts
on a message's main group: the model where one is sent, else a gradient or a direction made of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

from consilience import tree
from consilience.algorithm import Algorithm, Conditions, Inbox, Phase, Wrapper
from consilience.errors import UserError
from consilience.sweeping import Sweepable
from consilience.transforms.until import Until
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.client import Client

MODELS = ("params", "merged")
"""The groups that hold a model, which says how far the parameters moved."""
GROUPS = (*MODELS, "gradient", "direction")
"""The groups that a transform acts on: on the first of them that a message has."""


class Message(NamedTuple):
    """An upload on its way."""

    client: Client
    upload: State
    start: Params
    """The parameters that the client received (its own ones on a graph)."""
    exchange: int
    """The number of the exchange within the round."""

    @property
    def group(self) -> str | None:
        """The name of the main group; None where there is none."""
        return next((group for group in GROUPS if group in self.upload), None)

    @property
    def update(self) -> Params:
        """What the main group says: how far the parameters moved, or the gradient or direction itself."""
        assert self.group is not None
        main = self.upload[self.group]
        return tree.sub(main, self.start) if self.group in MODELS else main

    def with_update(self, update: Params) -> State:
        """The upload with another update."""
        assert self.group is not None
        main = tree.add(self.start, update) if self.group in MODELS else update
        return {**self.upload, self.group: main}


class Transform(Sweepable, ABC):
    """A change of messages, as a frozen dataclass of numbers. Called with an algorithm, it wraps it."""

    name: ClassVar[str]
    rebuilt: ClassVar[frozenset[str]] = frozenset()
    """The groups that are not sent: a receiver works them out from others by `receive`."""
    private: ClassVar[frozenset[str]] = frozenset()
    """The groups that are for the sender alone."""

    def init_memory(self, params: Params) -> State:
        """The state that a client keeps for this transform, for each exchange of a round."""
        return {}

    @abstractmethod
    def apply(self, message: Message, memory: State) -> tuple[State, State]:
        """What is sent in place of the upload, and what to remember."""

    def receive(self, message: State, last: State) -> State:
        """The message that arrived, with its rebuilt groups; the arguments are those of `Phase.receive`."""
        return message

    def settle(self, old: State, new: State, inbox: Inbox) -> State:
        """The state that a node of a graph goes on with after it has combined what it heard.

        Args:
            old: The node's state before.
            new: What the method combined.
            inbox: What the node heard.
        """
        return new

    def refuse(self, conditions: Conditions) -> str | None:
        """Why this transform cannot work under some conditions, or None."""
        return None

    def __call__(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with its messages changed."""
        if isinstance(algorithm, Until):  # the two may have other exchanges
            return replace(algorithm, inner=self(algorithm.inner), then=self(algorithm.then))
        return Transformed(algorithm, self)


@final
@dataclass(frozen=True)
class Transformed(Wrapper):
    """A method whose uploads go through a transform."""

    name: ClassVar[str] = "transformed"
    transform: Transform

    def __post_init__(self) -> None:
        if any(phase.rebuilt.intersection(GROUPS) for phase in self.inner.phases()):
            raise UserError(
                f"{self.label}: what is changed after messages were packed does not travel; pack them last"
            )

    @property
    def label(self) -> str:
        return f"{self.inner.label} {self.transform.name}"

    def init_memory(self, model: State) -> State:
        return tree.join(self.inner.init_memory(model), self._memories(model, replies=False))

    def init_link(self, model: State) -> State:
        return tree.join(self.inner.init_link(model), self._memories(model, replies=True))

    def _memories(self, model: State, *, replies: bool) -> State:
        """The states that are kept for this transform, for exchanges of replies or for the others."""
        own = self.transform.init_memory(model["params"])
        exchanges = [number for number, one in enumerate(self.inner.phases()) if one.replies == replies]
        return {self._key(number, group): params for number in exchanges for group, params in own.items()}

    def model(self, hub: State, memory: State) -> State:
        return self.inner.model(hub, self._of_method(memory))

    def personal_model(self, hub: State, memory: State) -> State:
        return self.inner.personal_model(hub, self._of_method(memory))

    def refuse(self, conditions: Conditions) -> str | None:
        if self.inner.reshapes():
            return "an upload is compared with what was broadcast, and these differ in shape"
        return self.inner.refuse(conditions) or self.transform.refuse(conditions)

    def _key(self, exchange: int, group: str) -> str:
        return f"{self.transform.name}.{exchange}.{group}"

    def _of_method(self, memory: State) -> State:
        """What the method itself remembers."""
        prefix = f"{self.transform.name}."
        return {group: params for group, params in memory.items() if not group.startswith(prefix)}

    def _own(self, exchange: int, memory: State) -> State:
        """What the transform itself remembers of an exchange."""
        prefix = self._key(exchange, "")
        return {g.removeprefix(prefix): params for g, params in memory.items() if g.startswith(prefix)}

    def change(self, phase: Phase, exchange: int, *, setup: bool) -> Phase:
        if setup:  # what is agreed on once, before the first round, is left alone
            return phase

        def local(client: Client, down: State, memory: State) -> tuple[State, State]:
            upload, kept = phase.local(client, down, self._of_method(memory))
            message = Message(client, upload, down.get("params", {}), exchange)
            if message.group is None:  # nothing to change, e.g. in a method that sends nothing
                return upload, {**memory, **kept}
            several = [group for group in GROUPS if group in upload]
            if self.transform.rebuilt.issuperset(several) and len(several) > 1:
                raise UserError(
                    f"{self.label}: one message has {' and '.join(several)}; only one can be packed"
                )
            sent, later = self.transform.apply(message, self._own(exchange, memory))
            renewed = {self._key(exchange, group): params for group, params in later.items()}
            return sent, {**memory, **kept, **renewed}

        def combine(hub: State, inbox: Inbox) -> State:
            new = phase.combine(hub, inbox)
            return new if inbox.own is None else self.transform.settle(hub, new, inbox)

        return phase._replace(
            local=local,
            combine=combine,
            rebuilt=phase.rebuilt | self.transform.rebuilt,
            private=phase.private | self.transform.private,
            # The last change of a message is the first that its receiver takes back.
            receive=lambda message, last: phase.receive(self.transform.receive(message, last), last),
        )
