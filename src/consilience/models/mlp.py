"""Fully connected layers, on inputs of any shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, final

from torch import nn

from consilience.errors import UserError
from consilience.models.spec import Classifier, ModelSpec, hidden_layers


@final
@dataclass(frozen=True)
class MLP(ModelSpec):
    """Fully connected layers with ReLU, two of 200 by default (HWA on 28x28 images)."""

    name: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (200, 200)

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise UserError(f"model mlp needs hidden widths of at least 1, got {self.hidden}")

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network of one linear layer and ReLU for every hidden width, then the output layer."""
        inputs = prod(shape)
        body = nn.Sequential(nn.Flatten(), *hidden_layers(inputs, self.hidden))
        return Classifier(body, nn.Linear((inputs, *self.hidden)[-1], outputs))
