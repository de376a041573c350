"""The contract of a problem: what is a loss, how good is a model, and what does curvature mean?"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.types import Params

LOSS, ROWS = "loss", "rows"
"""The names of the sums that every problem has: of the losses, and of the rows that count."""


class Metric(NamedTuple):
    """The score that tables, plots and targets show."""

    name: str
    higher_is_better: bool = True
    percent: bool = False
    """Whether it is a share, shown in per cent."""

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is as good as a target, or better; NaN is not."""
        return value >= target if self.higher_is_better else value <= target

    def fraction(self, best: float, share: float) -> float:
        """The value that is as good as a share (up to 1) of the best."""
        return best * share if self.higher_is_better else best / share

    def best(self, values: Iterable[float]) -> float:
        """The best of the values that are finite; NaN where none is."""
        finite = filter(math.isfinite, values)
        return max(finite, default=math.nan) if self.higher_is_better else min(finite, default=math.nan)

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which all values lie, as they are shown."""
        return (0.0, 100.0) if self.percent else (-math.inf, math.inf)

    @property
    def unit(self) -> str:
        """The unit in which values are shown, or nothing."""
        return "%" if self.percent else ""

    @property
    def axis(self) -> str:
        """What an axis of test scores says."""
        return f"test {self.name} ({self.unit})" if self.unit else f"test {self.name}"

    def shown(self, value: float) -> str:
        """A value without its unit: per cent with two decimals, others with four significant digits.

        >>> Metric("accuracy", percent=True).shown(0.81234)
        '81.23'
        >>> [Metric("r2").shown(value) for value in (0.8, -0.01, 12.345, 999.96, 50257, 1e6)]
        ['0.8000', '-0.01000', '12.35', '1000', '50257', '1.000e+06']
        """
        if self.percent:
            return f"{100 * value:.2f}"
        # A whole number that is not too long is easier to read than a power of ten.
        return f"{value:.0f}" if 999.95 <= abs(value) < 999_999.5 else f"{value:#.4g}"

    def shown_with_unit(self, value: float) -> str:
        """A value as it stands in a sentence."""
        return f"{self.shown(value)} {self.unit}".rstrip()

    def shown_spread(self, deviation: float) -> str:
        """A standard deviation beside such a value: in per cent as it, else with two significant digits.

        >>> Metric("accuracy", percent=True).shown_spread(0.00449)
        '0.45'
        >>> [Metric("r2").shown_spread(deviation) for deviation in (0, 0.00449, 0.3, 123)]
        ['0', '0.0045', '0.3', '120']
        """
        return self.shown(deviation) if self.percent else f"{float(f'{deviation:.2g}'):g}"


class Problem(ABC):
    """What is to be learned, as a frozen dataclass of options. It holds no data.

    Outputs are what a model gives for a batch, [batch, ...]; targets are what the data say about it. A score
    comes from sums over rows (`tally`), so that it can be taken batch by batch and for many models at once.
    """

    name: ClassVar[str]
    metric: ClassVar[Metric]
    others: ClassVar[tuple[Metric, ...]] = ()
    """The scores beside the metric and the loss."""
    targets: ClassVar[tuple[float, ...]] = ()
    """Values of the metric that a run looks for by default."""
    has_classes: ClassVar[bool] = False
    """Whether a target is the number of a class, one for each row."""
    enumerable: ClassVar[bool] = False
    """Whether `possible_targets` can list all targets that a row could have."""
    factored: ClassVar[bool] = True
    """Whether `hessian_factors` is worth its cost."""

    @classmethod
    def named_scores(cls) -> tuple[Metric, ...]:
        """All scores, that by which methods are compared first."""
        return cls.metric, *cls.others, Metric(LOSS, higher_is_better=False)

    @property
    def score_names(self) -> list[str]:
        """The names of all scores."""
        return [one.name for one in self.named_scores()]

    @abstractmethod
    def fault(self, targets: Tensor, outputs: int) -> str | None:
        """Why targets are not those of this problem, in a few words; None where they are.

        Args:
            targets: [rows, ...].
            outputs: How many numbers a model gives for a row (for each of its places, where it has many).
        """

    @abstractmethod
    def outputs(self, targets: Tensor) -> int:
        """How many numbers a model should give, judged by the targets."""

    def for_data(self, targets: Tensor, outputs: int) -> Problem:
        """The problem with the options that follow from the training targets filled in."""
        return self

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[batch] the loss of every row."""

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor, weight: Tensor) -> Params:
        """Sums over the rows of a batch, in float64, from which scores follow.

        Args:
            outputs: What the model gave.
            targets: What would have been right.
            weight: [batch] 1 for a row that counts, 0 for padding.
        """

    @abstractmethod
    def scores(self, sums: Params) -> dict[str, Tensor]:
        """The named scores, the metric and `loss` among them, from sums with any leading axes."""

    def possible_targets(self, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """All targets that rows could have, each with [batch] how likely the model finds it."""
        raise UserError(self.refuse_curvature("true_fisher") or "")

    def hessian_factors(self, outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """Tensors s_c like the outputs; sum_c s_c s_c' is the Hessian of a row's loss by its outputs."""
        raise UserError(self.refuse_curvature("ggn") or "")

    def refuse_curvature(self, kind: str) -> str | None:
        """Why a kind of curvature diagonal cannot be had here, or None."""
        if kind == "true_fisher" and not self.enumerable:
            return f"curvature true_fisher lists all possible targets, and {self.name} has no such list"
        if kind == "ggn" and not self.factored:
            return (
                f"curvature ggn takes a pass for every place and token of {self.name}: choose per_sample_sum"
            )
        return None


def row_sums(losses: Tensor, weight: Tensor) -> Params:
    """The sums that every problem has: of the losses, and of the rows that count."""
    counted = weight.double()
    return {LOSS: torch.where(weight > 0, losses.double(), 0.0).sum(), ROWS: counted.sum()}


def mean_loss(sums: Params) -> Tensor:
    """The mean loss over the rows that count, from their sums."""
    return sums[LOSS] / sums[ROWS]
