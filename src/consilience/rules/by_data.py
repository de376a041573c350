"""Plain averages: by the number of samples (FedAvg), or uniform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from torch import Tensor

from consilience.rules.base import Rule
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Inbox

Weighting = Literal["samples", "uniform"]


@final
@dataclass(frozen=True)
class ByData(Rule):
    """The mean of the models, weighted by samples or uniform."""

    name: ClassVar[str] = "by_data"
    weighting: Weighting = "samples"

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        return inbox.mean("params", self.shares(inbox))
