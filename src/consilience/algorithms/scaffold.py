"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning (ICML 2020). The objective has the client's equations; the server averages uniformly and takes a
step of size `server_lr` towards the mean, w <- w + server_lr (mean - w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.control_variates import ControlVariates
from consilience.rules.by_data import ByData
from consilience.server_steps.relax import Relax


@final
@dataclass(frozen=True)
class Scaffold(Method):
    """FedAvg whose local gradients are corrected by control variates."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = "local steps y <- y - lr (g_k(y) - c_k + c); w <- w + server_lr mean_k (y_k - w)"
    choose: ClassVar[str] = "When clients drift and take part often, and twice the bytes are affordable."
    option: Literal["I", "II"] = "II"
    server_lr: float = 1.0

    def parts(self) -> Parts:
        return Parts(ControlVariates(option=self.option), ByData("uniform"), Relax(self.server_lr))
