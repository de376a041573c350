"""LeNet-5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack, stage
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class LeNet5(ModelSpec):
    """LeNet-5 with ReLU and max-pooling: convolutions 6-16, layers of 120 and 84 (FAGH on CIFAR-10).

    Images smaller than 32x32 (28x28 digits) are padded by 2 on every side, as in the original.
    """

    name: ClassVar[str] = "lenet5"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network of two 5x5 convolutions, unpadded except for the first one on small images."""
        channels = image_channels(self.name, shape)
        convolutions = [
            *stage(channels, 6, kernel=5, padding=2 if min(shape[1:]) < 32 else 0),
            *stage(6, 16, kernel=5),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(stack(convolutions, hidden_layers(size, (120, 84))), nn.Linear(84, outputs))
