"""HWA: average chosen layers coordinate by coordinate, weighted by each client's curvature.

Ahmad, Luo, Robles-Kelly: Robust federated learning under statistical heterogeneity via
hessian-weighted aggregation (Machine Learning 2023). Training is FedAvg's; the rule has the equations
and their defects. Larger curvature means larger weight; data sizes do not count in weighted layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience.curvature import Kind
from consilience.method import Method, Parts
from consilience.rules.hessian_weighted import Form, HessianWeighted
from consilience.tree import Layers


@final
@dataclass(frozen=True)
class HWA(Method):
    """FedAvg with the output layer (or more) averaged by curvature."""

    name: ClassVar[str] = "hwa"
    paper: ClassVar[str] = "Ahmad, Luo, Robles-Kelly, Machine Learning 2023"
    layers: Layers = "output"
    form: Form = "normalised"
    kind: Kind = "per_sample_sum"
    norm_scope: Literal["layer", "tensor", "model"] = "layer"

    def parts(self) -> Parts:
        return Parts(rule=HessianWeighted(self.layers, self.form, self.kind, self.norm_scope))
