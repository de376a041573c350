"""FedDyn: a regulariser that changes from round to round makes local and global optima agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization
(ICLR 2021). Client k minimises F_k(v) - <lambda_k, v> + alpha/2 ||v - w||^2; with N clients

    lambda_k <- lambda_k - alpha (theta_k - w)
    h <- h - (alpha/N) sum_{k heard} (theta_k - w),   w <- mean_{k heard} theta_k - h / alpha

What is kept are -lambda_k / alpha and -h / alpha, as in the authors' release: sums of moves, without a
division. The release's division of alpha by n_k / mean n is left out: clients do not know the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.drift import DynamicRegulariser
from consilience.rules.by_data import ByData
from consilience.server_steps.add_drift import AddDrift


@final
@dataclass(frozen=True)
class FedDyn(Method):
    """Clients' losses get a linear term and a pull, so that they agree on the optimum of all.

    Attributes:
        alpha: The strength of the pull; the larger, the smaller the moves.
    """

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al., ICLR 2021"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = (
        "clients minimise F_k(v) - <l_k, v> + alpha/2 ||v - w||^2; w <- mean w_k - h/alpha"
    )
    choose: ClassVar[str] = (
        "When clients drift and no byte more than FedAvg's is affordable (beyond the papers)"
    )
    alpha: float = 0.01

    def parts(self) -> Parts:
        return Parts(DynamicRegulariser(alpha=self.alpha), ByData("uniform"), AddDrift())
