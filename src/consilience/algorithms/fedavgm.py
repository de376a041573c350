"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (arXiv 2019), m <- beta m + D, w <- w + server_lr m with D = sum_k p_k (w_k - w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.by_data import ByData, Weighting
from consilience.server_steps.momentum import Momentum


@final
@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum at the server."""

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu, Qi, Brown, arXiv 2019"
    family: ClassVar[Family] = "server optimisers"
    formula: ClassVar[str] = "m <- beta m + sum_k p_k (w_k - w); w <- w + server_lr m"
    choose: ClassVar[str] = (
        "When rounds pull in different directions: skewed data, or few clients a round; no bytes more."
    )
    server_lr: float = 1.0
    beta: float = 0.9
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(rule=ByData(self.weighting), server=Momentum(self.server_lr, self.beta))
