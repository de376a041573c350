"""DecDiff: bounded moves towards the neighbours' mean.

Valerio, Boldrini, Passarella, Kertesz, Karsai, Iniguez: Coordination-free Decentralised Federated Learning on
Complex Networks: Overcoming Heterogeneity (2023): w_i <- w_i - (w_i - m_i) / (||w_i - m_i|| + s), m_i the
mean of the neighbours' models. By default a norm for every tensor and equal weights, as released; the paper
reads as `scope: model`, and its weights (trust times data) as `weighting: samples`. Buffers are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.bounded_move import BoundedMove, Scope
from consilience.rules.by_data import Weighting


@final
@dataclass(frozen=True)
class DecDiff(Method):
    """Every node moves towards its neighbours' mean, by less than 1 however far that is."""

    name: ClassVar[str] = "decdiff"
    paper: ClassVar[str] = "Valerio et al., 2023"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "w_i <- w_i - (w_i - m_i) / (||w_i - m_i|| + s), m_i the neighbours' mean"
    choose: ClassVar[str] = "On a graph of peers whose models start apart and should come together slowly."
    scope: Scope = "tensor"
    s: float = 1.0
    weighting: Weighting = "uniform"

    def parts(self) -> Parts:
        return Parts(rule=BoundedMove(self.scope, self.s, self.weighting))
