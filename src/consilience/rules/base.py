"""The contract of a rule: what evidence goes with the parameters, and how does a hub weigh it?

A hub is a server that hears its clients, or a node of a graph that hears its neighbours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from consilience.sweeping import Sweepable
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client
    from consilience.objectives.base import Objective


class Rule(Sweepable, ABC):
    """A way to merge models."""

    name: ClassVar[str]
    ordinary: ClassVar[bool] = False
    """Whether `merge` is ordinary code that looks at numbers, as `Phase.ordinary` says."""

    def init_memory(self, model: State) -> State:
        """The state that a client keeps for this rule between rounds, before its first one."""
        return {}

    def evidence(self, client: Client, model: State, memory: State) -> tuple[State, State]:
        """What to add to the upload after training, and what to remember.

        Args:
            client: The client that has trained.
            model: Its trained model.
            memory: What it remembered before.
        """
        return {}, {}

    def shares(self, inbox: Inbox) -> Tensor:
        """[messages] the weights of what this rule has no evidence about; they sum to 1."""
        return inbox.weights

    @abstractmethod
    def merge(self, old: Params, inbox: Inbox) -> Params:
        """The merged parameters; `old` are the hub's own before this exchange."""

    def contributors(self, inbox: Inbox) -> Tensor | None:
        """0-d, how many messages a merged parameter is made of, the mean over all of them.

        With w_k the weights of the messages in one parameter it is `(sum_k w_k)^2 / sum_k w_k^2`. None where
        the rule does not give every message a weight, as a median, or where the weights are not known.
        """
        return None

    def refuse_objective(self, objective: Objective) -> str | None:
        """Why this rule makes no sense with an objective, or None."""
        return None

    def refuse(self, conditions: Conditions) -> str | None:
        """Why this rule cannot work under some conditions, or None."""
        return None
