"""One or several real numbers for each row: squared or Huber loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.errors import UserError, unknown
from consilience.problems.base import LOSS, ROWS, Metric, Problem, mean_loss, row_sums
from consilience.types import Params

Loss = Literal["mse", "huber"]


@final
@dataclass(frozen=True)
class Regression(Problem):
    """Real numbers for each row; the loss of a row is the mean over its numbers.

    Scores are r2 (the mean over numbers of 1 - squared errors / squared deviations of the targets from their
    mean; 0 where targets do not vary and the model errs) and mae, the mean absolute error.

    Attributes:
        loss: mse: the squared error; huber: half of it up to `delta`, linear with that slope beyond.
        delta: Where Huber's loss becomes linear.
    """

    name: ClassVar[str] = "regression"
    metric: ClassVar[Metric] = Metric("r2")
    others: ClassVar[tuple[Metric, ...]] = (Metric("mae", higher_is_better=False),)
    loss: Loss = "mse"
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in get_args(Loss):
            raise unknown("loss of regression", self.loss, get_args(Loss))
        if self.loss == "mse" and self.delta != 1:
            raise UserError(f"regression: delta {self.delta} is for the loss huber; mse has none")
        if not self.delta > 0:
            raise UserError(f"regression: delta must be above 0, not {self.delta}")

    def fault(self, targets: Tensor, outputs: int) -> str | None:
        if not targets.is_floating_point() or targets.ndim not in (1, 2):
            shape = tuple(targets.shape)
            return f"real numbers are wanted, [rows] or [rows, numbers], not {targets.dtype} {shape}"
        width = self.outputs(targets)
        return None if width == outputs else f"each has {width} numbers, but a model would give {outputs}"

    def outputs(self, targets: Tensor) -> int:
        return 1 if targets.ndim == 1 else targets.shape[1]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = _like(targets, outputs)
        if self.loss == "huber":
            return F.huber_loss(outputs, wanted, reduction="none", delta=self.delta).mean(-1)
        return (outputs - wanted).square().mean(-1)

    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        counted = (weight > 0)[:, None]
        wanted = torch.where(counted, _like(targets, outputs), 0.0).double()
        errors = torch.where(counted, outputs.double() - wanted, 0.0)
        return {
            **row_sums(self.losses(outputs, targets), weight),
            "absolute": errors.abs().sum(0),
            "squared": errors.square().sum(0),
            "targets": wanted.sum(0),
            "squared_targets": wanted.square().sum(0),
        }

    def scores(self, sums: Params) -> dict[str, Tensor]:
        rows = sums[ROWS][..., None]
        spread = sums["squared_targets"] - sums["targets"].square() / rows
        # Sums of squares that cancel leave a rest of rounding.
        varies = spread > 1e-12 * sums["squared_targets"]
        share = sums["squared"] / torch.where(varies, spread, 1.0)
        perfect = (sums["squared"] == 0).double()
        loss = mean_loss(sums)
        sane = torch.where(loss.isfinite(), 1.0, torch.nan)  # a model that has diverged has no score
        r2 = sane * torch.where(varies, 1 - share, perfect).mean(-1)
        return {"r2": r2, "mae": (sums["absolute"] / rows).mean(-1), LOSS: loss}

    def hessian_factors(self, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """A factor for each number, since H is diagonal.

        It is 2 / numbers for the squared error, and 1 / numbers where Huber's loss is not linear.
        """
        width = outputs.shape[-1]
        errors = (outputs.detach() - _like(targets, outputs)).abs()
        bent = torch.full_like(errors, 2.0) if self.loss == "mse" else (errors <= self.delta).to(errors.dtype)
        identity = torch.eye(width, dtype=outputs.dtype, device=outputs.device)
        for number in range(width):
            yield (bent / width).sqrt() * identity[number]


def _like(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the form and type of outputs."""
    return targets.reshape(outputs.shape).to(outputs.dtype)
