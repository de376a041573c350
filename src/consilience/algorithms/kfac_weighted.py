"""HWA with Kronecker-factored curvature: directions of a layer are weighed, not its coordinates.

This is no published method. Training is FedAvg's, and the rule has the equations: HWA's (Ahmad, Luo,
Robles-Kelly, Machine Learning 2023) with the curvature of k-FAC (Martens, Grosse, ICML 2015) in place of a
diagonal. It costs clients one more pass over their data, and the server some products of small matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.learning.curvature import MeanKind
from consilience.method import Method, Parts
from consilience.rules.by_data import Weighting
from consilience.rules.kfac_weighted import FactorScope, KroneckerWeighted
from consilience.tree import Layers


@final
@dataclass(frozen=True)
class KFACWeighted(Method):
    """FedAvg with the output layer (or more) averaged by Kronecker-factored curvature."""

    name: ClassVar[str] = "kfac_weighted"
    paper: ClassVar[str] = "HWA with the curvature of Martens, Grosse, ICML 2015"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "W = (sum_k A_k (x) B_k)^-1 sum_k (A_k (x) B_k) W_k per layer, A_k, B_k by k-FAC"
    choose: ClassVar[str] = (
        "To study beside hwa: on MNIST with two classes a client as good, for ten times its additional bytes."
    )
    layers: Layers = "output"
    kind: MeanKind = "per_sample_mean"
    norm_scope: FactorScope = "layer"
    damping: float = 1.0
    iterations: int = 50
    tolerance: float = 1e-10
    weighting: Weighting = "samples"
    """The weights of what has no curvature."""

    def parts(self) -> Parts:
        curvature = (self.layers, self.kind, self.norm_scope)
        solving = (self.damping, self.iterations, self.tolerance)
        return Parts(rule=KroneckerWeighted(*curvature, *solving, self.weighting))
