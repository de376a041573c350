"""GAMF: models are averaged once a multi-graph matching has brought their hidden units into one order.

Liu, Lou, Ji, Yan, Zhao: Deep Neural Network Fusion via Graph Matching with Applications to Model Ensemble and
Federated Learning (ICML 2022). Training and bytes are FedAvg's; the rule has the equations and the readings
taken. With MOON's loss on the clients it is the "GAMF w/ contrastive" of SWA's tables: `contrastive` is its
weight. The authors' VGG-11 is vgg11 with `batch_norm: false, bias: false`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.contrastive import Contrastive
from consilience.rules.graduated_assignment import GraduatedAssignment
from consilience.sweeping import is_zero


@final
@dataclass(frozen=True)
class GAMF(Method):
    """FedAvg of models whose hidden units were matched all at once, as graphs."""

    name: ClassVar[str] = "gamf"
    paper: ClassVar[str] = "Liu, Lou, Ji, Yan, Zhao, ICML 2022"
    family: ClassVar[Family] = "matching"
    formula: ClassVar[str] = "W_l = sum_k p_k U_kl' W_kl U_k(l-1), U by graduated assignment of all models"
    choose: ClassVar[str] = (
        "When clients' hidden units may have drifted into other orders, at FedAvg's bytes."
    )
    sweeps: int = 50
    contrastive: float | None = None
    """The weight of MOON's loss on the clients; None: they train as in FedAvg."""

    def parts(self) -> Parts:
        rule = GraduatedAssignment(self.sweeps)
        if self.contrastive is None or is_zero(self.contrastive):
            return Parts(rule=rule)
        return Parts(Contrastive(mu=self.contrastive), rule)
