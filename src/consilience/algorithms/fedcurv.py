"""FedCurv: elastic weight consolidation across clients.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak: Overcoming Forgetting in Federated Learning
on Non-IID Data (NeurIPS workshop 2019). The objective has the equations and deviations; the models are
averaged uniformly, as in the paper. The Fisher estimator is not specified there: the mean over samples of
squared gradients with the given labels (`batch_mean` is what OpenFL's implementation computes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.curvature import Kind
from consilience.method import Method, Parts
from consilience.objectives.fisher_elastic import FisherElastic
from consilience.rules.by_data import ByData, Weighting


@final
@dataclass(frozen=True)
class FedCurv(Method):
    """FedAvg with a penalty on moving what is important to other clients."""

    name: ClassVar[str] = "fedcurv"
    paper: ClassVar[str] = "Shoham et al., NeurIPS workshop 2019"
    strength: float = 1.0
    fisher: Kind = "per_sample_mean"
    stiffness: float | None = 1.0
    weighting: Weighting = "uniform"

    def parts(self) -> Parts:
        objective = FisherElastic(strength=self.strength, fisher=self.fisher, stiffness=self.stiffness)
        return Parts(objective, ByData(self.weighting))
