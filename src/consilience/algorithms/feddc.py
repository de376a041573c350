"""FedDC: local drift is learned, decoupled from the local model, and corrected at the server.

Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
Correction (CVPR 2022). From w, client k minimises

    F_k(v) + alpha/2 ||v - (w - h_k)||^2 + <v, c - c_k>

and adds its move to its drift, h_k <- h_k + (theta_k - w); then

    w <- mean_{k heard} theta_k + mean_{all k} h_k

The objective has the controls c and c_k, and what differs from the release. The model that is evaluated is
w, not the mean of the clients'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.drift import DriftVariable
from consilience.rules.by_data import ByData
from consilience.server_steps.add_drift import AddDrift


@final
@dataclass(frozen=True)
class FedDC(Method):
    """Clients learn their drift h_k, and the server adds its mean to the mean of their models.

    Attributes:
        alpha: How strongly a client is pulled towards `w - h_k`.
    """

    name: ClassVar[str] = "feddc"
    paper: ClassVar[str] = "Gao et al., CVPR 2022"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = (
        "clients minimise F_k(v) + alpha/2 ||v - w + h_k||^2 + <v, c - c_k>; w <- mean w_k + h"
    )
    choose: ClassVar[str] = (
        "When clients drift and take part often, and SCAFFOLD alone is too slow; its bytes."
    )
    alpha: float = 0.01

    def parts(self) -> Parts:
        return Parts(DriftVariable(alpha=self.alpha), ByData("uniform"), AddDrift())
