"""The convolutional network with which DecHW learns MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from consilience.models.layers import stack
from consilience.models.spec import Classifier, ModelSpec, flattened_size, hidden_layers, image_channels


@final
@dataclass(frozen=True)
class MnistCNN(ModelSpec):
    """Two 5x5 convolutions 10-20 and a layer of 50, with dropout (DecHW on MNIST).

    It was PyTorch's MNIST example until December 2018. `dropout` switches both of its dropout layers.
    """

    name: ClassVar[str] = "mnist-cnn"

    dropout: bool = True

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network that pools before each ReLU and drops whole channels of the second convolution."""
        convolutions: list[nn.Module] = [
            nn.Conv2d(image_channels(self.name, shape), 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            *([nn.Dropout2d(0.5)] if self.dropout else []),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
        size = flattened_size(self.name, convolutions, shape)
        dense = [*hidden_layers(size, (50,)), *([nn.Dropout(0.5)] if self.dropout else [])]
        return Classifier(stack(convolutions, dense), nn.Linear(50, outputs))
