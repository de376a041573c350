"""The convolutional network with which FAGH learns Fashion-MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack
from consilience.models.spec import Classifier, ModelSpec, flattened_size, image_channels


@final
@dataclass(frozen=True)
class FaghCNN(ModelSpec):
    """Two 3x3 convolutions 32-64 with batch normalisation, layers of 600 and 120 (FAGH on Fashion-MNIST).

    The parameter count that FAGH prints is that of a widespread tutorial model, which has no activation
    between its fully connected layers; neither has this one. That model's Dropout2d is plain dropout here,
    because the tensor is flat already.
    """

    name: ClassVar[str] = "fagh-cnn"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network in which only the first convolution is padded."""
        convolutions: list[nn.Module] = [
            nn.Conv2d(image_channels(self.name, shape), 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        size = flattened_size(self.name, convolutions, shape)
        dense = [nn.Linear(size, 600), nn.Dropout(0.25), nn.Linear(600, 120)]
        return Classifier(stack(convolutions, dense), nn.Linear(120, outputs))
