"""FedGA: implicit gradient alignment by displaced starts.

Dandi, Barba, Jaggi: Implicit Gradient Alignment in Distributed and Federated Learning (AAAI 2022). The
objective has the client's equations; the server steps by server_lr sum_k p_k Delta_k. The gradients that are
exchanged first are full ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.aligned_start import AlignedStart
from consilience.rules.by_data import ByData, Weighting
from consilience.server_steps.relax import Relax


@final
@dataclass(frozen=True)
class FedGA(Method):
    """FedAvg whose clients start displaced, so that their gradients align."""

    name: ClassVar[str] = "fedga"
    paper: ClassVar[str] = "Dandi, Barba, Jaggi, AAAI 2022"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = "train from w + beta (g_k - g); w <- w + lr sum_k p_k Delta_k"
    choose: ClassVar[str] = "When clients' gradients disagree and a second exchange a round is affordable."
    beta: float = 0.1
    server_lr: float = 1.0
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(AlignedStart(beta=self.beta), ByData(self.weighting), Relax(self.server_lr))
