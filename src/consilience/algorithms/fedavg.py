"""FedAvg: average models after several local epochs. On a graph this is DecHetero or DecHomo.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data (AISTATS 2017), w <- sum_k (n_k / n) w_k over the sampled clients. On a graph every
node averages its closed neighbourhood (eq. 3 of the DecHW paper); with different initial models that is
DecHetero, with a common one DecHomo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.by_data import ByData, Mixing


@final
@dataclass(frozen=True)
class FedAvg(Method):
    """The mean of the clients' models."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "w <- sum_k (n_k/n) w_k"
    choose: ClassVar[str] = "As the baseline, and whenever clients' data are alike."
    weighting: Mixing = "samples"

    def parts(self) -> Parts:
        return Parts(rule=ByData(self.weighting))
