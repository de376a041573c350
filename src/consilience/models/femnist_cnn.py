"""LEAF's convolutional network for FEMNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack, stage
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class FemnistCNN(ModelSpec):
    """Two 5x5 convolutions 32-64 and a layer of 2048 (LEAF; HWA on FEMNIST).

    LEAF is written in TensorFlow, whose layers start from Glorot-uniform weights and zero biases.
    """

    name: ClassVar[str] = "femnist-cnn"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network whose convolutions keep the size of an image and whose poolings halve it."""
        convolutions = [
            *stage(image_channels(self.name, shape), 32, kernel=5, padding=2),
            *stage(32, 64, kernel=5, padding=2),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(stack(convolutions, hidden_layers(size, (2048,))), nn.Linear(2048, outputs))
