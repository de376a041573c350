"""FedProx: FedAvg with a pull towards the round's global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks (MLSys 2020).
Clients are sampled and averaged as in FedAvg (the authors' release does so too).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.proximal import Proximal
from consilience.rules.by_data import ByData, Weighting


@final
@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with `mu/2 ||w - w_start||^2` added to the local loss."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "clients minimise F_k(v) + mu/2 ||v - w||^2; w <- sum_k (n_k/n) w_k"
    choose: ClassVar[str] = "When clients do different amounts of work or drift moderately; costs no bytes."
    mu: float = 0.1
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(objective=Proximal(mu=self.mu), rule=ByData(self.weighting))
