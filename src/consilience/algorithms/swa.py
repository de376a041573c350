"""SWA: layers whose weights are far from Gaussian weigh more.

Chatzikonstantinou et al.: Federated Learning Aggregation based on Weight Distribution Analysis. Server-side
only: training and bytes are FedAvg's, data sizes are ignored by design. The rule has the equations, their
defects and the readings taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.method import Method, Parts
from consilience.rules.gaussianity import Distance, Form, Gaussianity, Sign


@final
@dataclass(frozen=True)
class SWA(Method):
    """FedAvg with layers weighted by the non-Gaussianity of their weights."""

    name: ClassVar[str] = "swa"
    paper: ClassVar[str] = "Chatzikonstantinou et al., SWA"
    distance: Distance = "hos"
    form: Form = "normalised"
    sign: Sign = "abs"
    standardise: bool = False

    def parts(self) -> Parts:
        return Parts(rule=Gaussianity(self.distance, self.form, self.sign, self.standardise))
