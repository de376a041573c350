"""Pull the local model towards the round's start.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks (MLSys 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from torch import Tensor

from consilience import tree
from consilience.objectives.base import Objective, Pass
from consilience.sweeping import check_non_negative, is_zero
from consilience.types import State

if TYPE_CHECKING:
    from consilience.client import Client


@final
@dataclass(frozen=True)
class Proximal(Objective):
    """Adds `mu/2 ||w - w_start||^2` to the loss."""

    name: ClassVar[str] = "proximal"
    mu: float = 0.1

    def __post_init__(self) -> None:
        check_non_negative(self, "mu")

    def context(self, client: Client, down: State, memory: State) -> State:
        return {"anchor": down["params"]}

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        if is_zero(self.mu):
            return None
        return 0.5 * self.mu * tree.sq_norm(tree.sub(at.params, context["anchor"]))
