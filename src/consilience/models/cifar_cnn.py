"""The convolutional network with which HWA and DecHW learn CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack, stage
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class CifarCNN(ModelSpec):
    """Three 3x3 convolutions 32-64-128 and a layer of 128 (HWA and DecHW on CIFAR-10).

    HWA states neither padding nor the width of the hidden layer; both come from DecHW's release.
    """

    name: ClassVar[str] = "cifar-cnn"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network whose convolutions keep the size of an image and whose poolings halve it."""
        convolutions = [
            *stage(image_channels(self.name, shape), 32, kernel=3, padding=1),
            *stage(32, 64, kernel=3, padding=1),
            *stage(64, 128, kernel=3, padding=1),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(stack(convolutions, hidden_layers(size, (128,))), nn.Linear(128, outputs))
