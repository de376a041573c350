"""Weigh every coordinate by its client's Fisher information.

Matena, Raffel: Merging Models with Fisher-Weighted Averaging (NeurIPS 2022), eq. 4. Each model stands for a
Gaussian posterior whose mean are its weights and whose precision is its Fisher information; the merged model
is where the product of the posteriors is largest. With F_k the mean Fisher diagonal of client k at its
trained weights and p_k its share of the data, per coordinate

    w = sum_k p_k F_k w_k / sum_k p_k F_k,   F_k -> max(F_k, floor)

so that coordinates about which nobody knows anything are averaged by data. Unlike Hessian-weighted averages,
F_k keeps its scale: a client whose loss is steeper counts more, and so does one with more data. The Fisher
information of the given labels (empirical) goes to 0 where a client fits its data; `true_fisher`, the
paper's, takes labels from the model's own prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from torch import Tensor

from consilience import aggregate, tree
from consilience.learning.curvature import MeanKind
from consilience.rules.base import Rule
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client

IMPORTANCE = "importance"
"""The group of a message that holds the Fisher diagonal."""


@final
@dataclass(frozen=True)
class FisherWeighted(Rule):
    """The mean of each coordinate, weighted by the clients' Fisher diagonals times their shares of the data.

    Attributes:
        layers: Which layers carry Fisher information; the others are averaged by data.
        kind: Which Fisher information: of the given labels, of the model's own, or Gauss-Newton.
        floor: The least that a diagonal counts as; where all are below, the average is that by data.
        weighting: The shares p_k.
    """

    name: ClassVar[str] = "fisher_merge"
    layers: tree.Layers = "all"
    kind: MeanKind = "per_sample_mean"
    floor: float = 1e-12
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        check_non_negative(self, "floor")

    def refuse(self, conditions: Conditions) -> str | None:
        return conditions.problem.refuse_curvature(self.kind)

    def evidence(self, client: Client, model: State, memory: State) -> tuple[State, State]:
        chosen = tree.select_layers(model["params"], self.layers)
        names = tuple(name for layer in chosen for name in layer)
        return {IMPORTANCE: client.squared_gradients(model, names, self.kind)}, {}

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        shares = self.shares(inbox)
        weighed = inbox.importance_mean(inbox[IMPORTANCE], self._diagonal, shares, factors=shares)
        return inbox.mean("params", shares) | weighed

    def contributors(self, inbox: Inbox) -> Tensor:
        shares, names = self.shares(inbox), inbox[IMPORTANCE]
        fisher = {name: self._diagonal(inbox.messages, name) for name in names}
        return aggregate.importance_number(inbox["params"], fisher, shares, factors=shares)

    def _diagonal(self, messages: State, name: str) -> Tensor:
        """Stacked diagonals of a parameter, not below the floor."""
        return messages[IMPORTANCE][name].clamp(min=self.floor)
