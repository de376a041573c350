"""Krum and multi-Krum: trust the messages that have close neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent (NeurIPS 2017); of models where the paper has gradients. Of n messages, f of which may be lies:

    score_k = the sum of ||w_k - w_j||^2 over the n - f - 2 messages j closest to k
    w <- w_k with the smallest score (Krum), or the mean of the `keep` with the smallest (multi-Krum)

It needs n >= 2f + 3, and at most n - f - 2 can be kept (Damaskinos et al.: AggregaThor, MLSys 2019).

Messages with equal scores are kept together, where the paper leaves the choice open: two that are each
other's only neighbour always tie, and an order of messages must not matter. In a round with losses n is
the number received; a message then still has one neighbour, but below 2f + 3 nothing is guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.rules import robust
from consilience.rules.base import Rule
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox


@final
@dataclass(frozen=True)
class Krum(Rule):
    """The model(s) with the closest neighbours: withstands f liars among 2f + 3 messages.

    Data sizes do not count, for they can be lies too. Buffers are merged by data as always.

    Attributes:
        f: How many of the messages may be lies.
        keep: How many models are averaged: 1 is Krum, more is multi-Krum; none: as many as can be.
    """

    name: ClassVar[str] = "krum"
    f: int = 1
    keep: int | None = 1

    def __post_init__(self) -> None:
        if self.f < 0:
            raise UserError(f"krum: f must be at least 0, not {self.f}")
        if self.keep is not None and self.keep < 1:
            raise UserError(f"krum: keep must be at least 1, not {self.keep}")

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        return inbox.mean("params", self.coefficients(inbox))

    def coefficients(self, inbox: Inbox) -> Tensor:
        """[messages] equal weights of the messages that are kept, 0 for all others."""
        heard = inbox.weights > 0
        count = heard.sum()
        scores = self.scores(inbox)
        most = (count - self.f - 2).clamp(min=1)
        keep = (most if self.keep is None else torch.full_like(count, self.keep)).minimum(count)
        rank = torch.arange(len(heard), device=heard.device)
        worst = torch.where(rank == keep - 1, scores.sort().values, 0.0).sum()
        kept = (heard & (scores <= worst)).double()
        return kept / kept.sum().clamp(min=1)

    def scores(self, inbox: Inbox) -> Tensor:
        """[messages] scores: small for one with close neighbours, infinite for one that was not received."""
        heard = inbox.weights > 0
        count = heard.sum()
        distances = robust.sq_distances(robust.inner_products(inbox["params"]))
        itself = torch.eye(len(heard), dtype=torch.bool, device=heard.device)
        near = torch.where(heard & ~itself, distances, torch.inf).sort(1).values
        neighbours = (count - self.f - 2).clamp(min=1).minimum(count - 1)
        rank = torch.arange(len(heard), device=heard.device)
        return torch.where(heard, torch.where(rank < neighbours, near, 0.0).sum(1), torch.inf)

    def refuse(self, conditions: Conditions) -> str | None:
        messages, who = conditions.messages, robust.hearer(conditions)
        if messages < 2 * self.f + 3:
            return (
                f"krum with f={self.f} needs at least {2 * self.f + 3} messages a round, "
                f"but {who} hears {messages}"
            )
        most = messages - self.f - 2
        if self.keep is not None and self.keep > most:
            return (
                f"krum with f={self.f} can keep at most {most} of the {messages} messages "
                f"{who} hears, not {self.keep}"
            )
        return None
