"""HWA: average chosen layers coordinate by coordinate, weighted by each client's curvature.

Ahmad, Luo, Robles-Kelly: Robust federated learning under statistical heterogeneity via
hessian-weighted aggregation (Machine Learning 2023). Training is FedAvg's; the rule has the equations
and their defects. Larger curvature means larger weight; data sizes do not count in weighted layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience.algorithm import Family
from consilience.learning.curvature import Kind
from consilience.method import Method, Parts
from consilience.rules.by_data import Weighting
from consilience.rules.hessian_weighted import CurvatureForm, HessianWeighted
from consilience.tree import Layers


@final
@dataclass(frozen=True)
class HWA(Method):
    """FedAvg with the output layer (or more) averaged by curvature."""

    name: ClassVar[str] = "hwa"
    paper: ClassVar[str] = "Ahmad, Luo, Robles-Kelly, Machine Learning 2023"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "w = sum_k P_k w_k per coordinate, P_k = r_k / sum_j r_j, r_k = D_k / ||D_k||"
    choose: ClassVar[str] = "When clients hold few classes each; one per cent more bytes, training as usual."
    layers: Layers = "output"
    form: CurvatureForm = "normalised"
    kind: Kind = "per_sample_sum"
    norm_scope: Literal["layer", "tensor", "model"] = "layer"
    weighting: Weighting = "samples"
    """The weights of what has no curvature."""
    guard: float | None = None
    """The cap on exaggerated curvature, e.g. 1: see the rule; None is the paper."""

    def parts(self) -> Parts:
        kinds = (self.layers, self.form, self.kind, self.norm_scope)
        return Parts(rule=HessianWeighted(*kinds, weighting=self.weighting, guard=self.guard))
