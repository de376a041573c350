"""The contract: an algorithm is its initial states and a tuple of exchanges of messages.

One exchange is three pure functions: a hub broadcasts, clients work, the hub combines what it heard. A
server is a hub that hears its cohort, the clients of a round; a peer on a graph is a hub that hears its
neighbours. Client code is written for ONE client; only the engine adds the client axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from consilience import aggregate, sweeping, tree
from consilience.client import Client
from consilience.learning.solvers import Solver
from consilience.problems import Classification, Problem
from consilience.types import Params, State


@dataclass(frozen=True)
class Inbox:
    """What a hub received in one exchange. Messages are stacked: every tensor is [messages, ...]."""

    messages: State
    weights: Tensor
    """[messages] shares of the data, summing to 1; 0 where a message was not received."""
    peers: Tensor
    """[messages] shares of the data without the hub's own, summing to 1 (all 0 where no peer was heard)."""
    own: State | None
    """A node's own message; None at a server."""
    population: Tensor
    """0-d, how many clients have data, heard or not."""
    mixing: Tensor | None = None
    """[messages] a node's Metropolis-Hastings weights: with those of all nodes, a symmetric matrix whose rows
    sum to 1. What was not heard counts for the node itself. None at a server."""
    gather: aggregate.Gather = aggregate.at_once
    """Brings the rows of all messages together; another one where they are not all there at once."""

    def __getitem__(self, group: str) -> Params:
        return self.messages[group]

    @property
    def heard(self) -> Tensor:
        """[messages] 1.0 where a message was received, else 0.0."""
        return (self.weights > 0).to(self.weights.dtype)

    @property
    def uniform(self) -> Tensor:
        """[messages] equal weights of those received."""
        return self.heard / self.heard.sum().clamp(min=1)

    def total(self, values: aggregate.Values, weights: Tensor | None = None) -> Params:
        """`sum_k weights[k] values(message k)` in float64, by data shares unless other weights are given.

        What is asked for in sums can be added up while messages come, so that they need not all be held. That
        takes weights that follow from `weights` and `heard` alone, and no sum that depends on another.

        Args:
            values: Gives [messages, ...] tensors of stacked messages, each row from its own message alone.
            weights: [messages].
        """
        given = self.weights if weights is None else weights
        return self.gather(self.messages, values, given, exact=True)

    def mean(self, group: str, weights: Tensor | None = None) -> Params:
        """The mean of a group, by data shares unless other weights are given."""
        given = self.weights if weights is None else weights
        return self.gather(self.messages, lambda messages: messages[group], given)

    def sum(self, group: str) -> Params:
        """The plain sum of a group over the messages received."""
        return self.mean(group, self.heard)

    def importance_mean(
        self,
        names: Iterable[str],
        evidence: aggregate.Evidence,
        weights: Tensor,
        factors: Tensor | None = None,
    ) -> Params:
        """The mean of some parameters, coordinate by coordinate, as `aggregate.importance_mean` says.

        Args:
            names: Which parameters.
            evidence: Gives the importance of one of them, of stacked messages.
            weights: [messages], for where nobody has any importance; they sum to 1.
            factors: [messages], by what a message's importance is multiplied.
        """
        return aggregate.weighed_mean(self.gather, self.messages, names, evidence, weights, factors)

    def buffers(self) -> Params:
        """The merged buffers: by data shares, never by curvature; counters by their maximum."""
        means = self.gather(self.messages, lambda messages: _floating(messages["buffers"]), self.weights)
        counters = self.gather(
            self.messages, lambda messages: _whole(messages["buffers"]), self.weights, "most"
        )
        return means | counters


def _floating(params: Params) -> Params:
    return {name: value for name, value in params.items() if value.is_floating_point()}


def _whole(params: Params) -> Params:
    return {name: value for name, value in params.items() if not value.is_floating_point()}


def nothing(hub: State) -> State:
    """What a hub broadcasts where clients need nothing from it: an empty message."""
    return {}


def as_it_came(message: State, last: State) -> State:
    """The message itself: what a receiver makes of one from which nothing was left out."""
    return message


class Phase(NamedTuple):
    """One exchange of messages, and what of it travels.

    An upload holds all groups that `combine` reads. Most of them are sent; those named below are not, each
    for a reason of its own, and `travelling` and `received` say what that means at either end of a wire.
    """

    broadcast: Callable[[State], State]
    local: Callable[[Client, State, State], tuple[State, State]]
    combine: Callable[[State, Inbox], State]
    known: frozenset[str] = frozenset()
    """Groups of the broadcast that clients have from the exchange before: they are not sent again."""
    kept: frozenset[str] = frozenset()
    """Groups of an upload that a receiver keeps from the sender's last message."""
    rebuilt: frozenset[str] = frozenset()
    """Groups of an upload that a receiver works out from the others, by `receive`."""
    private: frozenset[str] = frozenset()
    """Groups of an upload that never leave their sender: on a graph they are for its own `combine`."""
    receive: Callable[[State, State], State] = as_it_came
    """Gives the message with its rebuilt groups, from the message that arrived and the receiver's last state
    of the sender. On a graph that state is the sender's last message in this exchange (zeros before the
    first); at a server it is what was broadcast to the sender, with the groups in `kept` from its last
    message."""
    resampled: bool = False
    """Whether, at a server, clients are drawn anew for this exchange and those after it in the round: who
    takes part may then know nothing of the exchanges before."""
    flooded: bool = False
    """Whether, on a graph, messages are passed on until every node has heard every other."""
    replies: bool = False
    """Whether, on a graph, every node answers each neighbour whom it heard in the exchange before: `local`
    gets that neighbour's message and what the node remembers of it (`init_link`), and what it uploads goes to
    that neighbour alone. What hubs would broadcast is not asked."""
    ordinary: bool = False
    """Whether `combine` is ordinary code, for servers alone: it is called for one hub at a time and may look
    at numbers, leave torch, and change the shapes of the hub's tensors (`Algorithm.reshapes`)."""

    def travelling(self, upload: State) -> State:
        """What is sent of an upload."""
        return tree.without(upload, self.kept | self.rebuilt | self.private)

    def received(self, message: State, last: State) -> State:
        """The upload without its private groups, from what was sent and what its receiver knew before."""
        known = {group: last[group] for group in self.kept if group in last}
        return self.receive({**message, **known}, last)


@dataclass(frozen=True)
class Conditions:
    """The conditions under which an algorithm is asked to run: what `refuse` may look at."""

    graph: bool
    solver: Solver
    epochs: int | None
    holdout: bool
    """Whether clients hold data out."""
    unreliable: bool
    """Whether some messages do not come: partial participation or failures."""
    messages: int = 10
    """The fewest messages that a hub hears in a round in which none is lost."""
    features: bool = True
    """Whether the model tells its features from its logits."""
    clip: bool = False
    """Whether gradients are clipped."""
    stepwise: bool = False
    """Whether the learning rate changes within a local training."""
    stragglers: bool = False
    """Whether some clients train for fewer epochs than others."""
    redrawn: bool = False
    """Whether nodes get other neighbours during the run."""
    unmatchable: str | None = None
    """What keeps hidden units of the model from changing places, in a few words; None where they can."""
    problem: Problem = field(default_factory=Classification)
    """What is to be learned."""


Family = Literal[
    "averaging",
    "curvature and statistics",
    "drift correction",
    "server optimisers",
    "matching",
    "personalisation",
    "references",
]
"""What kind of idea a method is."""

Init = Literal["common", "different"]
"""Whether all clients start from one model, or each from its own."""


Evaluated = Literal["hub", "client", "both"]
"""Which models are evaluated: those of hubs, every client's own, or both."""


class Algorithm(sweeping.Sweepable, ABC):
    """A method, as a frozen dataclass that holds numbers only: initial states and exchanges of messages."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """The paper's authors, title and venue."""
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = ""
    """What the method computes, in one line."""
    choose: ClassVar[str] = ""
    """When to choose the method, in one line."""

    @property
    def label(self) -> str:
        """What logs and errors call it: its name and, where something was done to it, what that was."""
        return self.name

    def evaluated(self) -> Evaluated:
        """Which models are evaluated: `model` gives those that count, `personal_model` those beside them."""
        return "hub"

    def for_data(self, inputs: tuple[int, ...], classes: int) -> Algorithm:
        """The algorithm for inputs of a shape and a number of classes; most need to know neither."""
        return self

    def for_model(self, model: State, l2: float = 0.0) -> Algorithm:
        """The algorithm for models of the form of this one, and for losses with such an l2 term.

        Most need to know neither.
        """
        return self

    def fleeting(self) -> frozenset[str]:
        """Groups of clients' memories that pass with the round: whoever reads them writes them before, in it.

        So a simulation does not keep them for those who are away, nor in checkpoints. A client whose upload
        was rejected when it wrote them finds what it began with.
        """
        return frozenset()

    def reshapes(self) -> bool:
        """Whether states change their shapes in the course of a run.

        Two such federations have nothing in common that could be stacked: replicas run one after the other.
        """
        return False

    def linear_only(self) -> bool:
        """Whether it is defined for models of one linear layer alone; it refuses others in `init_hub`."""
        return False

    def quick(self) -> Algorithm:
        """An algorithm with the same messages and less work, for where only their sizes matter."""
        return self

    def init_hub(self, model: State) -> State:
        """The hub's state before round 0. `model` has `params` and `buffers`."""
        return model

    def init_memory(self, model: State) -> State:
        """A client's state before its first round; it never leaves the client."""
        return {}

    def init_link(self, model: State) -> State:
        """What a node keeps about each neighbour that it answers, before it first does."""
        return {}

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one round."""

    def setup(self) -> tuple[Phase, ...]:
        """The exchanges that run once, with all clients, before round 0."""
        return ()

    def at(self, round_number: int) -> Algorithm:
        """The algorithm in force in a round (rounds count from 0); the states stay the same."""
        return self

    def model(self, hub: State, memory: State) -> State:
        """The model that is evaluated; `memory` is empty where hubs' models are."""
        return {"params": hub["params"], "buffers": hub["buffers"]}

    def personal_model(self, hub: State, memory: State) -> State:
        """A client's own model; by default the one that is evaluated."""
        return self.model(hub, memory)

    def refuse(self, conditions: Conditions) -> str | None:
        """Why this algorithm cannot work under some conditions, in one line; None where it can."""
        return None


class SingleExchange(Algorithm):
    """An algorithm whose round is one exchange: a hub broadcasts, clients work, the hub combines."""

    def broadcast(self, hub: State) -> State:
        """What the hub sends to every client of the cohort; by default its model."""
        return {"params": hub["params"], "buffers": hub["buffers"]}

    @abstractmethod
    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        """A client's work: its upload and its new memory."""

    def combine(self, hub: State, inbox: Inbox) -> State:
        """The hub's new state; by default the mean of the models, weighted by data."""
        return {**hub, "params": inbox.mean("params"), "buffers": inbox.buffers()}

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.broadcast, self.local, self.combine),)


@dataclass(frozen=True)
class Wrapper(Algorithm):
    """A method that does what another one does, but for what a subclass changes."""

    inner: Algorithm

    def around(self, inner: Algorithm) -> Algorithm:
        """A wrapper that changes another method in the same way."""
        return sweeping.replace(self, {"inner": inner})

    def change(self, phase: Phase, exchange: int, *, setup: bool) -> Phase:
        """The exchange that is carried out in place of one of the inner method's.

        Args:
            phase: The inner method's exchange.
            exchange: Its number within the round, or within the setup.
            setup: Whether it is one of those before the first round.
        """
        return phase

    @property
    def label(self) -> str:
        return self.inner.label

    def evaluated(self) -> Evaluated:
        return self.inner.evaluated()

    def for_data(self, inputs: tuple[int, ...], classes: int) -> Algorithm:
        return self.around(self.inner.for_data(inputs, classes))

    def for_model(self, model: State, l2: float = 0.0) -> Algorithm:
        return self.around(self.inner.for_model(model, l2))

    def fleeting(self) -> frozenset[str]:
        return self.inner.fleeting()

    def reshapes(self) -> bool:
        return self.inner.reshapes()

    def linear_only(self) -> bool:
        return self.inner.linear_only()

    def quick(self) -> Algorithm:
        return self.around(self.inner.quick())

    def init_hub(self, model: State) -> State:
        return self.inner.init_hub(model)

    def init_memory(self, model: State) -> State:
        return self.inner.init_memory(model)

    def init_link(self, model: State) -> State:
        return self.inner.init_link(model)

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self.change(one, i, setup=False) for i, one in enumerate(self.inner.phases()))

    def setup(self) -> tuple[Phase, ...]:
        return tuple(self.change(one, i, setup=True) for i, one in enumerate(self.inner.setup()))

    def at(self, round_number: int) -> Algorithm:
        return self.around(self.inner.at(round_number))

    def model(self, hub: State, memory: State) -> State:
        return self.inner.model(hub, memory)

    def personal_model(self, hub: State, memory: State) -> State:
        return self.inner.personal_model(hub, memory)

    def refuse(self, conditions: Conditions) -> str | None:
        return self.inner.refuse(conditions)
