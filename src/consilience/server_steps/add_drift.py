"""Move on by the drift that all clients have on the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from consilience import tree
from consilience.objectives.drift import DRIFT, Drift
from consilience.server_steps.base import ServerStep
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Inbox
    from consilience.objectives.base import Objective
    from consilience.rules.base import Rule


@final
@dataclass(frozen=True)
class AddDrift(ServerStep):
    """`w <- merged + mean over all clients of h_k`, the drift that their objective keeps."""

    name: ClassVar[str] = "add_drift"

    def apply(self, hub: State, merged: Params, inbox: Inbox) -> tuple[Params, State]:
        return tree.add(merged, hub[DRIFT]), {}

    def refuse_parts(self, objective: Objective, rule: Rule) -> str | None:
        if not isinstance(objective, Drift):
            return "no drift is kept: choose the objective dynamic_regulariser or drift_variable"
        return None
