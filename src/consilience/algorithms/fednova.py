"""FedNova: unequal local work does not change what is minimised.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization (NeurIPS 2020). The rule has the equations. Server momentum is m <- beta m + D, w <- w + m with D
the normalised update; the authors' release divides D by the learning rate in m and multiplies again, which is
the same unless the learning rate changes between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.proximal import Proximal
from consilience.rules.by_data import Weighting
from consilience.rules.normalised_steps import NormalisedSteps
from consilience.server_steps.momentum import Momentum


@final
@dataclass(frozen=True)
class FedNova(Method):
    """FedAvg with every update divided by its client's effective number of steps.

    Attributes:
        mu: The strength of FedProx's pull in local training.
        server_momentum: The momentum of the server's model.
        weighting: The weights of the updates.
    """

    name: ClassVar[str] = "fednova"
    paper: ClassVar[str] = "Wang et al., NeurIPS 2020"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = "w <- w - (sum_k p_k a_k) sum_k p_k (w - w_k) / a_k, a_k effective local steps"
    choose: ClassVar[str] = "When clients take different numbers of local steps; costs one number more."
    mu: float = 0.0
    server_momentum: float = 0.0
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        rule = NormalisedSteps(self.mu, self.weighting)
        return Parts(Proximal(mu=self.mu), rule, Momentum(1.0, self.server_momentum))
