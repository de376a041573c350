"""SWA: layers whose weights are far from Gaussian weigh more.

Chatzikonstantinou et al.: Federated Learning Aggregation based on Weight Distribution Analysis. Server-side
only: training and bytes are FedAvg's, data sizes are ignored by design. The rule has the equations, their
defects and the readings taken. The paper also combines it with MOON's loss on the clients:
`contrastive` is its weight, there 8 for CIFAR-10, 5 for CIFAR-100 and 3 for Tiny-ImageNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.contrastive import Contrastive
from consilience.rules.gaussianity import Distance, DistanceForm, Gaussianity, Sign
from consilience.sweeping import is_zero


@final
@dataclass(frozen=True)
class SWA(Method):
    """FedAvg with layers weighted by the non-Gaussianity of their weights."""

    name: ClassVar[str] = "swa"
    paper: ClassVar[str] = "Chatzikonstantinou et al., SWA"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "W_l = sum_k Gd_kl W_kl / sum_j Gd_jl, Gd = |k3 k4| of the layer's weights"
    choose: ClassVar[str] = "When the server sees models and nothing else, not even data sizes."
    distance: Distance = "hos"
    form: DistanceForm = "normalised"
    sign: Sign = "abs"
    standardise: bool = False
    contrastive: float | None = None
    """The weight of MOON's loss on the clients; None: they train as in FedAvg."""

    def parts(self) -> Parts:
        rule = Gaussianity(self.distance, self.form, self.sign, self.standardise)
        if self.contrastive is None or is_zero(self.contrastive):
            return Parts(rule=rule)
        return Parts(Contrastive(mu=self.contrastive), rule)
