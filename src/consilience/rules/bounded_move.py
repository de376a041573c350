"""Move towards the neighbours' mean, but never by 1 or more.

Valerio, Boldrini, Passarella, Kertesz, Karsai, Iniguez: Coordination-free Decentralised Federated Learning on
Complex Networks: Overcoming Heterogeneity (2023). With m_i the mean of the neighbours of node i, itself not
among them:

    w_i <- w_i - (w_i - m_i) / (||w_i - m_i|| + s)

The released code takes a norm for every tensor and weighs neighbours alike; the paper reads as one norm for
the model. For s >= 1 the result lies between w_i and m_i. Buffers are averaged by data over the closed
neighbourhood, as in every method; the release moves them by the rule above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import aggregate, tree
from consilience.errors import UserError
from consilience.rules.base import Rule
from consilience.rules.by_data import Weighting
from consilience.sweeping import is_swept
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox

Scope = Literal["tensor", "model"]
"""What has a norm of its own: every tensor, or the whole model."""


@final
@dataclass(frozen=True)
class BoundedMove(Rule):
    """A node moves towards its neighbours' mean, by less than 1 however far that is.

    Attributes:
        scope: Whether every tensor or the whole model moves by less than 1.
        s: What slows small moves: a distance d is shortened to d / (d + s).
        weighting: How neighbours weigh in the mean.
    """

    name: ClassVar[str] = "bounded_move"
    scope: Scope = "tensor"
    s: float = 1.0
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        if not is_swept(self.s) and not self.s > 0:
            raise UserError(f"bounded_move: s must be above 0, not {self.s}")

    def merge(self, old: Params, inbox: Inbox) -> Params:
        shares = _of_neighbours(inbox, self.weighting)
        alone = shares.sum() == 0
        own = _own(old, inbox)
        gaps = {
            name: torch.where(alone, 0.0, aggregate.weighted_sum(value, shares) - own[name])
            for name, value in inbox["params"].items()
        }
        squares = {name: gap.square().sum() for name, gap in gaps.items()}
        if self.scope == "model":
            squares = dict.fromkeys(squares, torch.stack(list(squares.values())).sum())
        return {
            name: (own[name] + gap / (squares[name].sqrt() + self.s)).to(own[name].dtype)
            for name, gap in gaps.items()
        }

    def refuse(self, conditions: Conditions) -> str | None:
        return None if conditions.graph else "bounded_move is defined on a graph of peers: set topology"


def _of_neighbours(inbox: Inbox, weighting: Weighting) -> Tensor:
    """[messages] the neighbours' weights, summing to 1; all 0 where none was heard."""
    if weighting == "samples":
        return inbox.peers
    heard = (inbox.peers > 0).to(inbox.peers.dtype)
    return heard / heard.sum().clamp(min=1)


def _own(old: Params, inbox: Inbox) -> Params:
    """The parameters that the node trained, or holds where it had nothing to say (no data, or rejected)."""
    assert inbox.own is not None  # at a server it is refused
    spoke = ((inbox.weights > 0) & (inbox.peers == 0)).any()
    return tree.where(spoke, {"params": inbox.own["params"]}, {"params": old})["params"]
