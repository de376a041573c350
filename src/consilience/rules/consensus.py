"""Move towards the neighbours by a fixed share of the way.

Savazzi, Nicoli, Rampa: Federated Learning with Cooperating Devices: A Consensus Approach for Massive IoT
Networks (IEEE Internet of Things Journal 2020). With N_i the neighbours of node i that were heard:

    joint       psi_i = w_i + epsilon sum_j a_j (w_j - w_i),  a_j = n_j / sum_{k in N_i} n_k, without i itself
    sequential  for j in N_i in ascending order:  psi <- psi + epsilon b_j (w_j - psi),
                b_j = n_j / (n_j + (|N_i| - 1) n_i), as in the authors' code

Both are linear in the models, so both come down to one weighted sum. With epsilon = 1 the joint form replaces
a node's model by its neighbours' mean. Buffers are averaged by data over the closed neighbourhood, counters
by their maximum, as in every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import aggregate
from consilience.errors import UserError
from consilience.rules.base import Rule
from consilience.types import Number, Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox

Epsilon = float | Literal["inverse_degree"]
"""The share of the way that a node goes, or one over the number of neighbours that it heard."""
Mode = Literal["joint", "sequential"]
"""Whether a node goes to all neighbours at once, or to one after the other."""


@final
@dataclass(frozen=True)
class Consensus(Rule):
    """A node goes a share of the way to its neighbours, weighted by samples.

    Attributes:
        epsilon: The share of the way, from 0 (stay) to 1; inverse_degree: 1 / how many neighbours were heard.
        mode: Whether a node goes to all neighbours at once (joint) or to one after the other (sequential).
    """

    name: ClassVar[str] = "consensus"
    epsilon: Epsilon = 1.0
    mode: Mode = "joint"

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, int | float) and not 0 <= self.epsilon <= 1:
            raise UserError(f"consensus: epsilon must be from 0 to 1, not {self.epsilon}")

    def shares(self, inbox: Inbox) -> Tensor:
        others = self._followed(inbox)
        own = (inbox.weights > 0) & (inbox.peers == 0)
        return others + (1 - others.sum()) * own

    def contributors(self, inbox: Inbox) -> Tensor:
        shares = self.shares(inbox)
        return aggregate.effective_number(torch.cat((shares, 1 - shares.sum()[None])))

    def merge(self, old: Params, inbox: Inbox) -> Params:
        shares = self.shares(inbox)
        # A node that had nothing to say (without data, or rejected) moves from the model that it holds.
        silent = 1 - shares.sum()
        return {
            name: (aggregate.weighted_sum(value, shares) + silent * old[name]).to(value.dtype)
            for name, value in inbox["params"].items()
        }

    def _followed(self, inbox: Inbox) -> Tensor:
        """[messages] how much of each neighbour's model is in the result."""
        heard = inbox.peers > 0
        epsilon: Number = 1 / heard.sum().clamp(min=1) if self.epsilon == "inverse_degree" else self.epsilon
        if self.mode == "joint":
            return epsilon * inbox.peers
        own = torch.where(heard, 0.0, inbox.weights).sum()
        sizes = torch.where(heard, inbox.weights + (heard.sum() - 1) * own, 1.0)
        steps = torch.where(heard, epsilon * inbox.weights / sizes, 0.0)
        # A step counts by the share of it that the later ones leave.
        left = (1 - steps).flip(0).cumprod(0).flip(0)
        return steps * torch.cat((left[1:], torch.ones_like(left[:1])))

    def refuse(self, conditions: Conditions) -> str | None:
        return None if conditions.graph else "consensus is defined on a graph of peers: set topology"
