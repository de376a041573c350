"""The convolutional network with which MOON learns CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack, stage
from consilience.models.spec import (
    PROJECTION_SIZE,
    Classifier,
    ModelSpec,
    flattened_size,
    hidden_layers,
    image_channels,
    projection_layers,
)


@final
@dataclass(frozen=True)
class SimpleCNN(ModelSpec):
    """Two 5x5 convolutions 6-16, layers of 120 and 84, projection to 256 (MOON on CIFAR-10).

    `projection` is MOON's head. The logits are computed from its output, so it belongs to the body.
    """

    name: ClassVar[str] = "simple-cnn"

    projection: bool = True

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network of unpadded convolutions; the projection, where there is one, is 84-84-256."""
        convolutions = [
            *stage(image_channels(self.name, shape), 6, kernel=5),
            *stage(6, 16, kernel=5),
        ]
        size = flattened_size(self.name, convolutions, shape)
        dense = [*hidden_layers(size, (120, 84)), *(projection_layers(84) if self.projection else [])]
        width = PROJECTION_SIZE if self.projection else 84
        return Classifier(stack(convolutions, dense), nn.Linear(width, outputs))
