"""FedYogi: Yogi at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization (ICLR 2021),
m <- beta1 m + (1 - beta1) D, v <- v - (1 - beta2) D^2 sign(v - D^2),
w <- w + server_lr m / (sqrt(v) + tau) with D = sum_k p_k (w_k - w). No bias correction; v starts at tau^2.
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
class FedYogi(Method):
    """FedAvg with Yogi at the server."""

    name: ClassVar[str] = "fedyogi"
    paper: ClassVar[str] = "Reddi et al., ICLR 2021"
    family: ClassVar[Family] = "server optimisers"
    formula: ClassVar[str] = (
        "D = mean_k w_k - w; v <- v - (1 - beta2) D^2 sign(v - D^2); w <- w + server_lr m / (sqrt(v) + tau)"
    )
    choose: ClassVar[str] = "As fedadam, where updates vary in size: after small ones, steps grow slowly."
    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        server = Adaptive("yogi", self.server_lr, self.beta1, self.beta2, self.tau)
        return Parts(rule=ByData(self.weighting), server=server)
