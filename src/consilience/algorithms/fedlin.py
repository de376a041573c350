"""FedLin: corrections from fresh gradients, and learning rates that fit each client's steps.

Mitra, Jaafar, Pappas, Hassani: Linear Convergence in Federated Learning: Tackling Client Heterogeneity and
Sparse Gradients (NeurIPS 2021). The objective has the client's equations; g = sum_k p_k g_k(w), and the
server takes the mean w <- sum_k p_k y_k with the same shares (uniform in the paper, by data here unless
told). The paper's sparse gradients with error feedback are the transform `compressed`, which also acts on the
exchange of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.fresh_gradients import FreshGradients
from consilience.rules.by_data import ByData, Weighting


@final
@dataclass(frozen=True)
class FedLin(Method):
    """FedAvg with local gradients corrected to the mean gradient of the round."""

    name: ClassVar[str] = "fedlin"
    paper: ClassVar[str] = "Mitra et al., NeurIPS 2021"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = "y <- y - (lr/tau_k) (g_k(y) - g_k(w) + g); w <- mean_k y_k"
    choose: ClassVar[str] = "When all clients take part, their data differ and the exact optimum is wanted."
    divide_lr: bool = True
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(FreshGradients(divide_lr=self.divide_lr), ByData(self.weighting))
