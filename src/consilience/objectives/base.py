"""The contract of an objective: how does a client train?

A client trains on what a hub sent: a server, or on a graph the node itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from torch import Tensor

from consilience.learning.task import Output, Task
from consilience.sweeping import Sweepable
from consilience.types import Batch, Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client, Trained
    from consilience.rules.base import Rule

EarlyStop = Literal["never", "stop", "rollback"]
"""What a client does where the held-out loss has risen after an epoch: go on, stop there, or return to the
model from the start of the round."""


class Pass(NamedTuple):
    """What a penalty may look at: one forward pass on one batch."""

    task: Task
    params: Params
    batch: Batch
    output: Output


@dataclass(frozen=True)
class Objective(Sweepable):
    """The plain loss, with nothing added.

    Subclasses override what they change. `penalty` and `correct` see only their arguments: tensors they need
    come through `context`. That is what lets the engine stack, pack and capture one step for many clients.
    """

    name: ClassVar[str] = "plain"
    gradients_first: ClassVar[bool] = False
    """Whether each round begins with an exchange of gradients at the hub's model: a client then finds the
    mean in `down["gradient"]` and its own in `memory["gradient"]`."""
    early_stop: EarlyStop = field(default="never", kw_only=True)
    """Whether training may end before its last epoch."""

    def init_hub(self, model: State) -> State:
        """The state that a hub keeps for this objective beside the model, before round 0."""
        return {}

    def init_memory(self, model: State) -> State:
        """The state that a client keeps for this objective between rounds, before its first one."""
        return {}

    def download(self, hub: State) -> State:
        """What a hub sends beside the model."""
        return {}

    def prepare(self, client: Client) -> Client:
        """The client that trains, e.g. one with another learning rate."""
        return client

    def context(self, client: Client, down: State, memory: State) -> State:
        """The tensors that `start`, `penalty` and `correct` need.

        Args:
            client: The client that is about to train.
            down: What the hub sent.
            memory: What the client remembers.
        """
        return {}

    def start(self, down: State, context: State) -> State:
        """The model from which training starts."""
        return down

    def fit(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        """[batch] the loss of every row."""
        return task.loss(logits, targets)

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        """A 0-d term to add to the batch's mean loss; None where there is nothing to add."""
        return None

    def correct(self, grads: Params, context: State) -> Params:
        """The gradient that the solver gets to see."""
        return grads

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        """What to send beside the trained model (or in place of a group of it), and what to remember.

        Args:
            client: The client that has trained.
            down: What the hub sent.
            trained: The result of the training.
            memory: What the client remembered before.
        """
        return {}, {}

    def rebuilt(self) -> frozenset[str]:
        """The groups of the upload that are not sent: a hub works them out from others, by `receive`."""
        return frozenset()

    def receive(self, message: State, last: State) -> State:
        """The message that arrived, with its rebuilt groups; the arguments are those of `Phase.receive`."""
        return message

    def absorb(self, hub: State, inbox: Inbox) -> State:
        """The hub's state for this objective after the uploads have arrived."""
        return {}

    def refuse_rule(self, rule: Rule) -> str | None:
        """Why this objective makes no sense with a rule, or None."""
        return None

    def refuse(self, conditions: Conditions) -> str | None:
        """Why this objective cannot work under some conditions, or None."""
        if self.early_stop != "never" and not conditions.holdout:
            return "early stopping needs held-out data: set partition.holdout, e.g. 0.2"
        if self.early_stop != "never" and conditions.epochs is None:
            return "early stopping works epoch by epoch: set local.epochs instead of local.steps"
        if self.early_stop != "never" and conditions.stragglers:
            return "early stopping and local.stragglers both decide how long a client trains: choose one"
        if self.gradients_first and conditions.graph:
            return "neighbours' gradients belong to other models, so it is not defined on a graph"
        return None
