"""FedDANE: DANE with cohorts and inexact local solves.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method (Asilomar 2019). A first
cohort sends gradients, g = sum_k p_k grad F_k(w); the clients of a second one train from w on

    F_k(v) + <g - grad F_k(w), v> + (mu/2) ||v - w||^2,    and    w <- sum_k p_k w_k.

The paper draws the two cohorts independently, so a client of the second must be sent w too and compute
grad F_k(w) itself, one more pass over its data. With `cohort: same` one cohort does both, as in the authors'
release, whose draws are keyed by the round. `solve: exact` is DANE's solve in place of local training.

g is the gradient of a few clients, which does not vanish at the optimum of all: with few clients a round the
shift adds noise, and the paper's own experiments find FedDANE behind FedAvg and FedProx there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience.algorithm import Family, Phase
from consilience.algorithms.dane import ShiftedMinimum, Solve
from consilience.method import Parts
from consilience.objectives.gradient_shift import GradientShift
from consilience.rules.by_data import ByData, Weighting


@final
@dataclass(frozen=True)
class FedDANE(ShiftedMinimum):
    """FedProx with local gradients shifted to the mean gradient of another cohort.

    Attributes:
        mu: How strongly a local model is tied to the hub's.
        cohort: Whether the clients that train are drawn independently of those that sent gradients.
        solve: Whether clients train (inexact) or find the minimum by Newton's method (exact).
        newton_steps: The steps of Newton's method.
        iterations: The most iterations of conjugate gradients in each, every one a pass over the data.
        weighting: How clients count in all means.
    """

    name: ClassVar[str] = "feddane"
    paper: ClassVar[str] = "Li et al., Asilomar 2019"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "train on F_k(v) + <g - grad F_k(w), v> + (mu/2) ||v - w||^2; w <- sum_k p_k w_k"
    choose: ClassVar[str] = (
        "As dane, where only some clients take part in a round: many of them, of like data."
    )
    mu: float = 0.1
    cohort: Literal["independent", "same"] = "independent"
    solve: Solve = "inexact"
    newton_steps: int = 3
    iterations: int = 10
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        own: Literal["computed", "remembered"] = "computed" if self.cohort == "independent" else "remembered"
        return Parts(GradientShift(mu=self.mu, own=own), ByData(self.weighting))

    def phases(self) -> tuple[Phase, ...]:
        gradients, training = super().phases()
        if self.cohort == "same":
            return gradients, training
        return gradients, training._replace(resampled=True, known=frozenset())
