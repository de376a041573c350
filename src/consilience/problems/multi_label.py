"""Several labels for each row, each of them there or not: logistic losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.problems.base import LOSS, Metric, Problem, mean_loss, row_sums
from consilience.types import Params

BINS, REACH, FINE = 2048, 20.0, 64.0
"""Histograms of outputs z have so many equal bins in asinh(FINE z), from -REACH to REACH."""


@final
@dataclass(frozen=True)
class MultiLabel(Problem):
    """Labels that are there or not; the loss of a row is the mean cross-entropy over its labels.

    Scores are auc and f1, means over the labels that some row has and some row has not (for f1: that some row
    has). The area under the ROC curve is the chance that a row with a label gets a larger output for it than
    one without. It is found from histograms of outputs, whose bins are 0.0003 wide around 0 and 2 per cent of
    an output far from it; two in one bin count as equal. f1 takes a label for predicted where its output is
    above 0, i.e. its probability above one half.
    """

    name: ClassVar[str] = "multi_label"
    metric: ClassVar[Metric] = Metric("auc", percent=True)
    others: ClassVar[tuple[Metric, ...]] = (Metric("f1", percent=True),)

    def fault(self, targets: Tensor, outputs: int) -> str | None:
        if targets.ndim != 2 or targets.shape[1] != outputs:
            return f"{outputs} labels are wanted for each row, not targets {tuple(targets.shape)}"
        if not ((targets == 0) | (targets == 1)).all():
            classes = "; classes are [rows], not [rows, 1]" if outputs == 1 else ""
            return f"a label is 1 where it is there and 0 where it is not{classes}"
        return None

    def outputs(self, targets: Tensor) -> int:
        return targets.shape[1] if targets.ndim == 2 else 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = targets.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").mean(-1)

    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        counted = weight.double()[:, None]
        there, said = targets.double() * counted, (outputs > 0).double() * counted
        spread = torch.asinh(FINE * outputs.detach().nan_to_num()) + REACH
        bins = (spread * (BINS / (2 * REACH))).floor().clamp(0, BINS - 1).long().T
        blank = torch.zeros(bins.shape[0], BINS, dtype=torch.float64, device=outputs.device)
        return {
            **row_sums(self.losses(outputs, targets), weight),
            "with": blank.scatter_add(-1, bins, there.T.contiguous()),
            "without": blank.scatter_add(-1, bins, (counted - there).T.contiguous()),
            "hits": (there * said).sum(0),
            "said": said.sum(0),
        }

    def scores(self, sums: Params) -> dict[str, Tensor]:
        positives, negatives = sums["with"].sum(-1), sums["without"].sum(-1)
        below = sums["without"].cumsum(-1) - 0.5 * sums["without"]
        pairs = positives * negatives
        area = (sums["with"] * below).sum(-1) / torch.where(pairs > 0, pairs, 1.0)
        f1 = 2 * sums["hits"] / (sums["said"] + positives).clamp(min=1)
        loss = mean_loss(sums)
        # A model that has diverged has an order of outputs, but no score.
        sane = torch.where(loss.isfinite(), 1.0, torch.nan)
        return {"auc": sane * _mean(area, pairs > 0), "f1": sane * _mean(f1, positives > 0), LOSS: loss}

    def hessian_factors(self, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """A factor for each label, since H is diagonal: p (1 - p) / labels."""
        chances, labels = outputs.detach().sigmoid(), outputs.shape[-1]
        identity = torch.eye(labels, dtype=outputs.dtype, device=outputs.device)
        for label in range(labels):
            yield (chances * (1 - chances) / labels).sqrt() * identity[label]


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    """The mean over the last axis of those that count; NaN where none does."""
    return torch.where(counts, values, 0.0).sum(-1) / counts.sum(-1)
