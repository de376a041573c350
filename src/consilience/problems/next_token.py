"""The next token at every place of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.problems.base import LOSS, ROWS, Metric, Problem
from consilience.types import Params

PADDING = -100
"""The target of a place that does not count."""


@final
@dataclass(frozen=True)
class NextToken(Problem):
    """A token at every place; the loss of a row (a sequence) is the mean cross-entropy over its places.

    Places whose target is -100 do not count, so that sequences of unequal length can be padded. Scores are
    perplexity, e to the mean cross-entropy of a token, and token_accuracy.
    """

    name: ClassVar[str] = "next_token"
    metric: ClassVar[Metric] = Metric("perplexity", higher_is_better=False)
    others: ClassVar[tuple[Metric, ...]] = (Metric("token_accuracy", percent=True),)
    factored: ClassVar[bool] = False

    def fault(self, targets: Tensor, outputs: int) -> str | None:
        if targets.ndim != 2 or targets.dtype != torch.int64:
            return f"tokens are wanted, [rows, places] int64, not {targets.dtype} {tuple(targets.shape)}"
        counted = targets[targets != PADDING]
        if len(counted) and not 0 <= int(counted.min()) <= int(counted.max()) < outputs:
            return f"tokens run from {int(counted.min())} to {int(counted.max())}, outside 0 to {outputs - 1}"
        return None

    def outputs(self, targets: Tensor) -> int:
        return max(0, int(targets.max()) + 1) if targets.numel() else 0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each, counted = _tokens(outputs, targets)
        return each.sum(-1) / counted.sum(-1).clamp(min=1).to(each.dtype)

    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        each, counted = _tokens(outputs, targets)
        inside = counted & (weight > 0)[:, None]
        right = (outputs.argmax(-1) == targets) & inside
        return {
            LOSS: torch.where(inside, each.double(), 0.0).sum(),
            ROWS: weight.double().sum(),
            "tokens": inside.double().sum(),
            "correct": right.double().sum(),
        }

    def scores(self, sums: Params) -> dict[str, Tensor]:
        loss = sums[LOSS] / sums["tokens"]
        return {"perplexity": loss.exp(), "token_accuracy": sums["correct"] / sums["tokens"], LOSS: loss}


def _tokens(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """[batch, places] the loss of every token, 0 where it does not count, and whether it does."""
    counted = targets != PADDING
    safe = torch.where(counted, targets, 0)
    losses = F.cross_entropy(outputs.flatten(0, 1), safe.flatten(), reduction="none").reshape(targets.shape)
    return torch.where(counted, losses, 0.0), counted
