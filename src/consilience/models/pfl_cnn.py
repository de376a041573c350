"""The convolutional network of the pfl-research benchmarks on CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack, stage
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class PflCNN(ModelSpec):
    """Two 3x3 convolutions 32-64, one pooling, a layer of 128, dropout (pfl-research benchmarks on CIFAR-10).

    The release starts from Glorot-uniform weights (and torch's default biases).
    """

    name: ClassVar[str] = "pfl-cnn"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network of unpadded convolutions; dropout is 0.25 after them and 0.5 after the hidden layer."""
        convolutions = [
            nn.Conv2d(image_channels(self.name, shape), 32, 3),
            nn.ReLU(),
            *stage(32, 64, kernel=3),
            nn.Dropout(0.25),
        ]
        size = flattened_size(self.name, convolutions, shape)
        dense = [*hidden_layers(size, (128,)), nn.Dropout(0.5)]
        return Classifier(stack(convolutions, dense), nn.Linear(128, outputs))
