"""CFA: consensus-based federated averaging.

Savazzi, Nicoli, Rampa: Federated Learning with Cooperating Devices: A Consensus Approach for Massive IoT
Networks (IEEE Internet of Things Journal 2020): psi_i = w_i + epsilon sum_j a_j (w_j - w_i) over neighbours
j, a_j = n_j / sum_k n_k, then local training from psi_i. CFA-GE is the variant with an exchange of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.consensus import Consensus, Epsilon, Mode


@final
@dataclass(frozen=True)
class CFA(Method):
    """Every node goes a share of the way to its neighbours' mean."""

    name: ClassVar[str] = "cfa"
    paper: ClassVar[str] = "Savazzi et al., IEEE Internet of Things Journal 2020"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "w_i <- w_i + epsilon sum_j a_j (w_j - w_i), a_j = n_j / sum_k n_k"
    choose: ClassVar[str] = "As a baseline on a graph of peers; below epsilon 1 nodes keep some of their own."
    epsilon: Epsilon = 1.0
    mode: Mode = "joint"

    def parts(self) -> Parts:
        return Parts(rule=Consensus(self.epsilon, self.mode))
