"""FedCurv: elastic weight consolidation across clients.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak: Overcoming Forgetting in Federated Learning
on Non-IID Data (NeurIPS workshop 2019). The objective has the equations and deviations; the models are
averaged uniformly, as in the paper. The Fisher estimator is not specified there: the mean over samples of
squared gradients with the given labels (`batch_mean` is what OpenFL's implementation computes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.learning.curvature import Kind
from consilience.method import Method, Parts
from consilience.objectives.fisher_elastic import FisherElastic
from consilience.rules.by_data import ByData, Weighting


@final
@dataclass(frozen=True)
class FedCurv(Method):
    """FedAvg with a penalty on moving what is important to other clients."""

    name: ClassVar[str] = "fedcurv"
    paper: ClassVar[str] = "Shoham et al., NeurIPS workshop 2019"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "clients minimise F_s(w) + lambda sum_{j != s} (w - w_j)' diag(I_j) (w - w_j)"
    choose: ClassVar[str] = "When clients forget what others know and three times the bytes are affordable."
    strength: float = 1.0
    fisher: Kind = "per_sample_mean"
    stiffness: float | None = 1.0
    weighting: Weighting = "uniform"
    one_in: int = 1
    """One Fisher entry in so many counts and is sent: the largest ones."""

    def parts(self) -> Parts:
        objective = FisherElastic(self.strength, self.fisher, self.stiffness, self.one_in)
        return Parts(objective, ByData(self.weighting))
