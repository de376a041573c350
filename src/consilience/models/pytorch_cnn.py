"""The convolutional network with which FedCurv learns MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack, stage
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class PyTorchCNN(ModelSpec):
    """Two 5x5 convolutions 20-50 and a layer of 500 (FedCurv on MNIST).

    It was PyTorch's MNIST example from December 2018 to November 2019. The example ends in log-softmax; this
    model gives logits, so that the cross-entropy is the same.
    """

    name: ClassVar[str] = "pytorch-cnn"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network of unpadded convolutions, each with ReLU and pooling."""
        convolutions = [
            *stage(image_channels(self.name, shape), 20, kernel=5),
            *stage(20, 50, kernel=5),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(stack(convolutions, hidden_layers(size, (500,))), nn.Linear(500, outputs))
