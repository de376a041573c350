"""Plain averages: by the number of samples (FedAvg), or uniform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from torch import Tensor

from consilience import aggregate
from consilience.rules.base import Rule
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox

Weighting = Literal["samples", "uniform"]
"""How messages weigh in a mean: by their senders' numbers of samples, or alike."""
Mixing = Literal["samples", "uniform", "metropolis"]
"""How a node of a graph weighs its neighbourhood: as above, or by Metropolis-Hastings weights."""


@final
@dataclass(frozen=True)
class ByData(Rule):
    """The mean of the models, weighted by samples, uniform, or (on a graph) by Metropolis-Hastings."""

    name: ClassVar[str] = "by_data"
    weighting: Mixing = "samples"

    def shares(self, inbox: Inbox) -> Tensor:
        if self.weighting == "metropolis":
            assert inbox.mixing is not None  # at a server it is refused
            return inbox.mixing
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def refuse(self, conditions: Conditions) -> str | None:
        if self.weighting == "metropolis" and not conditions.graph:
            return "metropolis weights follow from the degrees of a graph: set topology"
        return None

    def contributors(self, inbox: Inbox) -> Tensor:
        return aggregate.effective_number(self.shares(inbox))

    def merge(self, old: Params, inbox: Inbox) -> Params:
        return inbox.mean("params", self.shares(inbox))
