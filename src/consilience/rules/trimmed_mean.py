"""The coordinate-wise trimmed mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
(ICML 2018), option II; of models where the paper has gradients.

    w[i] <- the mean of w_k[i] without the b smallest and the b largest, b = floor(fraction n)

n is the number of messages that were received in the round. Up to b liars move no coordinate out of the
range of the honest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.rules import robust
from consilience.rules.base import Rule
from consilience.sweeping import is_swept
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox

ROUNDING = 1e-4
"""What a product may lack to a whole number and still count as it: 0.29 * 100 is 28.999999999999996."""


@final
@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The mean of every coordinate without a fraction of the messages at each end.

    Data sizes do not count, for they can be lies too. Buffers are merged by data as always.

    Attributes:
        fraction: The fraction of the messages that is trimmed at each end. Less than one message is none.
    """

    name: ClassVar[str] = "trimmed_mean"
    fraction: float = 0.1

    def __post_init__(self) -> None:
        if not is_swept(self.fraction) and not 0 <= self.fraction <= 0.5:
            raise UserError(f"trimmed_mean: fraction must be from 0 to 0.5, not {self.fraction}")

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        heard = inbox.weights > 0
        share = torch.floor(self.fraction * heard.sum().double() + ROUNDING).long()
        trim = share.minimum(robust.half_of(heard))  # in a round with losses something is left, too

        def middle(values: Tensor) -> Tensor:
            return robust.middle_mean(values, heard, trim).to(values.dtype)

        return {name: robust.by_blocks(middle, inbox, value) for name, value in inbox["params"].items()}

    def refuse(self, conditions: Conditions) -> str | None:
        messages, trimmed = conditions.messages, int(self.fraction * conditions.messages + ROUNDING)
        if trimmed == 0 and self.fraction > 0:
            enough = math.ceil(1e3 / messages) / 1e3
            return (
                f"trimmed_mean with fraction {self.fraction} trims nothing of the {messages} messages "
                f"{robust.hearer(conditions)} hears; for one at each end set at least {enough}"
            )
        if 2 * trimmed < messages:
            return None
        return (
            f"trimmed_mean with fraction {self.fraction} leaves nothing of the {messages} messages "
            f"{robust.hearer(conditions)} hears: it takes {trimmed} at each end"
        )
