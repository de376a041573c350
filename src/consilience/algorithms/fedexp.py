"""FedExP: the server's step size from how far the clients' updates are apart.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation (ICLR 2023). Training is
FedAvg's; the server step has the equations. The paper averages uniformly; by default clients are weighted as
in FedAvg, in the mean and in the rate alike. Its combination with SCAFFOLD is
`Composed(ControlVariates(), ByData("uniform"), Extrapolate())`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.by_data import ByData, Weighting
from consilience.server_steps.extrapolate import Extrapolate


@final
@dataclass(frozen=True)
class FedExP(Method):
    """FedAvg that goes further than the mean where clients disagree."""

    name: ClassVar[str] = "fedexp"
    paper: ClassVar[str] = "Jhunjhunwala, Wang, Joshi, ICLR 2023"
    family: ClassVar[Family] = "server optimisers"
    formula: ClassVar[str] = "w <- w + max(1, sum_k p_k |D_k|^2 / (2 (|D|^2 + epsilon))) D; D = sum_k p_k D_k"
    choose: ClassVar[str] = (
        "When data are skewed and there is no time to tune a server learning rate; no bytes more."
    )
    epsilon: float = 1e-3
    average_last_two: bool = True
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(rule=ByData(self.weighting), server=Extrapolate(self.epsilon, self.average_last_two))
