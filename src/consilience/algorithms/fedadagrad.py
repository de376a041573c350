"""FedAdagrad: Adagrad at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization (ICLR 2021),
v <- v + D^2, w <- w + server_lr m / (sqrt(v) + tau) with D = sum_k p_k (w_k - w). Without momentum by
default (m = D), as in the paper's experiments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.by_data import ByData, Weighting
from consilience.server_steps.adaptive import Adaptive


@final
@dataclass(frozen=True)
class FedAdagrad(Method):
    """FedAvg with Adagrad at the server."""

    name: ClassVar[str] = "fedadagrad"
    paper: ClassVar[str] = "Reddi et al., ICLR 2021"
    family: ClassVar[Family] = "server optimisers"
    formula: ClassVar[str] = "D = mean_k w_k - w; v <- v + D^2; w <- w + server_lr D / (sqrt(v) + tau)"
    choose: ClassVar[str] = "When features are sparse, e.g. words: what rarely changes takes larger steps."
    server_lr: float = 0.01
    beta1: float = 0.0
    tau: float = 1e-3
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        server = Adaptive("adagrad", self.server_lr, self.beta1, tau=self.tau)
        return Parts(rule=ByData(self.weighting), server=server)
