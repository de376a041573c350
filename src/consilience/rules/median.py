"""The coordinate-wise median.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
(ICML 2018), option I; of models where the paper has gradients.

    w[i] <- median_k w_k[i]

Every coordinate stays among those of the honest as long as they are more than half of the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from torch import Tensor

from consilience.rules import robust
from consilience.rules.base import Rule
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Inbox


@final
@dataclass(frozen=True)
class Median(Rule):
    """The median of every coordinate: withstands lies of fewer than half of the messages.

    Data sizes do not count, for they can be lies too. Buffers are merged by data as always.
    """

    name: ClassVar[str] = "median"

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        heard = inbox.weights > 0

        def middle(values: Tensor) -> Tensor:
            return robust.median(values, heard).to(values.dtype)

        return {name: robust.by_blocks(middle, inbox, value) for name, value in inbox["params"].items()}
