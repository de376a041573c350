"""One class for each row: softmax and cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.errors import UserError
from consilience.problems.base import LOSS, ROWS, Metric, Problem, mean_loss, row_sums
from consilience.types import Params


@final
@dataclass(frozen=True)
class Classification(Problem):
    """One of several classes for each row.

    Attributes:
        class_weights: balanced: a row's loss counts by (rows / classes / rows of its class), so that rare
            classes count as much as frequent ones; or a number for each class. None: all rows alike.
    """

    name: ClassVar[str] = "classification"
    metric: ClassVar[Metric] = Metric("accuracy", percent=True)
    targets: ClassVar[tuple[float, ...]] = (0.8, 0.9)
    has_classes: ClassVar[bool] = True
    enumerable: ClassVar[bool] = True
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        weights = self.class_weights
        if isinstance(weights, list):
            object.__setattr__(self, "class_weights", tuple(weights))
        elif not (weights is None or weights == "balanced" or isinstance(weights, tuple)):
            raise UserError(f"classification: class_weights are balanced or numbers, not {weights!r}")
        if isinstance(weights, list | tuple) and not all(0 <= one < math.inf for one in weights):
            raise UserError(f"classification: class_weights must be at least 0 and finite, not {weights}")

    def fault(self, targets: Tensor, outputs: int) -> str | None:
        if targets.ndim != 1 or targets.dtype != torch.int64:
            return f"a class for each row is wanted, [rows] int64, not {targets.dtype} {tuple(targets.shape)}"
        if outputs < 2:
            return f"{outputs} class is too few; a classification problem needs at least 2"
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < outputs:
            low, high = int(targets.min()), int(targets.max())
            return f"they go from {low} to {high}; they must be in [0, {outputs})"
        weights = self.class_weights
        if isinstance(weights, tuple) and len(weights) != outputs:
            return f"class_weights has {len(weights)} numbers for {outputs} classes"
        return None

    def outputs(self, targets: Tensor) -> int:
        return int(targets.max()) + 1 if len(targets) else 0

    def for_data(self, targets: Tensor, outputs: int) -> Problem:
        if self.class_weights != "balanced":
            return self
        counts = torch.bincount(targets.cpu(), minlength=outputs)
        balanced = len(targets) / (outputs * counts.clamp(min=1).double())
        return replace(self, class_weights=tuple(torch.where(counts > 0, balanced, 1.0).tolist()))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = outputs.new_tensor(self.class_weights) if isinstance(self.class_weights, tuple) else None
        return F.cross_entropy(outputs, targets, weights, reduction="none")

    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        right = (outputs.argmax(-1) == targets).double()
        return {**row_sums(self.losses(outputs, targets), weight), "correct": (right * weight).sum()}

    def scores(self, sums: Params) -> dict[str, Tensor]:
        return {"accuracy": sums["correct"] / sums[ROWS], LOSS: mean_loss(sums)}

    def possible_targets(self, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        chances = outputs.detach().softmax(-1)
        for label in range(outputs.shape[-1]):
            chosen = torch.full(outputs.shape[:1], label, dtype=torch.int64, device=outputs.device)
            yield chosen, chances[:, label]

    def hessian_factors(self, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """The factors s_c = sqrt(w_y p_c) (e_c - p) of H = w_y (diag(p) - pp'), that of the cross-entropy."""
        chances = outputs.detach().softmax(-1)
        identity = torch.eye(chances.shape[-1], dtype=chances.dtype, device=chances.device)
        scale = torch.ones_like(chances[:, 0])
        if isinstance(self.class_weights, tuple):
            scale = chances.new_tensor(self.class_weights)[targets]
        for label in range(chances.shape[-1]):
            yield (scale[:, None] * chances[:, label : label + 1]).sqrt() * (identity[label] - chances)
