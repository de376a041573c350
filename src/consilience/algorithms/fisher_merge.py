"""Fisher merging in every round: average coordinate by coordinate, weighted by each client's Fisher diagonal.

Matena, Raffel: Merging Models with Fisher-Weighted Averaging (NeurIPS 2022). The paper merges fine-tuned
models once; here clients train as in FedAvg and are merged in every round. The rule has the equations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.learning.curvature import MeanKind
from consilience.method import Method, Parts
from consilience.rules.by_data import Weighting
from consilience.rules.fisher_merge import FisherWeighted
from consilience.tree import Layers


@final
@dataclass(frozen=True)
class FisherMerge(Method):
    """FedAvg with every coordinate averaged by its Fisher information."""

    name: ClassVar[str] = "fisher_merge"
    paper: ClassVar[str] = "Matena, Raffel, NeurIPS 2022"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "w = sum_k p_k F_k w_k / sum_k p_k F_k per coordinate, F_k the Fisher diagonal"
    choose: ClassVar[str] = (
        "When clients know different coordinates and take small steps: large ones swing; twice the bytes up."
    )
    layers: Layers = "all"
    kind: MeanKind = "per_sample_mean"
    floor: float = 1e-12
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(rule=FisherWeighted(self.layers, self.kind, self.floor, self.weighting))
