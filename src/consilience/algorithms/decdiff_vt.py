"""DecDiff+VT: bounded moves towards the neighbours' mean, and a virtual teacher in local training.

Valerio et al.: Coordination-free Decentralised Federated Learning on Complex Networks: Overcoming
Heterogeneity (2023). As DecDiff, with the loss (1 - alpha) CE + alpha KL(t || p) of a teacher t that gives
beta to the true class and the rest to all others alike. Defaults are those of the released scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.virtual_teacher import VirtualTeacher
from consilience.rules.bounded_move import BoundedMove, Scope
from consilience.rules.by_data import Weighting


@final
@dataclass(frozen=True)
class DecDiffVT(Method):
    """DecDiff whose nodes learn from a virtual teacher: soft labels."""

    name: ClassVar[str] = "decdiff-vt"
    paper: ClassVar[str] = "Valerio et al., 2023"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "DecDiff with the loss (1-alpha) CE + alpha KL(t||p), t = beta at the true class"
    choose: ClassVar[str] = "As DecDiff, where nodes have few classes and grow too sure of them."
    alpha: float = 1.0
    beta: float = 0.99
    scope: Scope = "tensor"
    s: float = 1.0
    weighting: Weighting = "uniform"

    def parts(self) -> Parts:
        return Parts(VirtualTeacher(self.alpha, self.beta), BoundedMove(self.scope, self.s, self.weighting))
