"""Logistic regression, on inputs of any shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, final

from torch import nn

from consilience.models.spec import Classifier, ModelSpec


@final
@dataclass(frozen=True)
class Logistic(ModelSpec):
    """Multinomial logistic regression, one linear layer (FAGH on EMNIST letters, HWA against FedNL)."""

    name: ClassVar[str] = "logistic"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network whose features are the flattened inputs themselves."""
        return Classifier(nn.Flatten(), nn.Linear(prod(shape), outputs))
