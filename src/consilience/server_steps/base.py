"""The contract of a server step: what does a hub do with the merged result?

A hub is a server that hears its clients, or a node of a graph that hears its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from consilience.sweeping import Sweepable
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.objectives.base import Objective
    from consilience.rules.base import Rule


@dataclass(frozen=True)
class ServerStep(Sweepable):
    """Replaces the old model by the merged one.

    Subclasses override what they change.
    """

    name: ClassVar[str] = "replace"

    def init(self, params: Params) -> State:
        """The state that a hub keeps for this step, before round 0."""
        return {}

    def apply(self, hub: State, merged: Params, inbox: Inbox) -> tuple[Params, State]:
        """The hub's new parameters and the new state of this step.

        Args:
            hub: The hub's state: the old parameters, and what the objective keeps there, already renewed.
            merged: What the rule made of the uploads.
            inbox: The uploads, with the rule's shares as weights.
        """
        return merged, {}

    def evaluated(self, hub: State) -> Params:
        """The parameters that are evaluated."""
        return hub["params"]

    def refuse_parts(self, objective: Objective, rule: Rule) -> str | None:
        """Why this step makes no sense with an objective or a rule, or None."""
        return None

    def refuse(self, conditions: Conditions) -> str | None:
        """Why this step cannot work under some conditions, or None."""
        return None
