"""The convolutional network with which DecHW learns Fashion-MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class FashionCNN(ModelSpec):
    """Two 3x3 convolutions 32-64, one pooling and a layer of 128 (DecHW on Fashion-MNIST)."""

    name: ClassVar[str] = "fashion-cnn"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network in which, as in the release, no ReLU follows the second convolution."""
        convolutions = [
            nn.Conv2d(image_channels(self.name, shape), 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(stack(convolutions, hidden_layers(size, (128,))), nn.Linear(128, outputs))
