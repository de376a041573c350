"""VGG networks for small images, in the variants that federated-learning papers use.

The options name them. GAMF: `batch_norm=False, bias=False`, no bias anywhere. NIID-Bench: `batch_norm=False,
classifier="nib"`, two more layers of 512 with dropout before each; it draws convolution weights from a normal
distribution of variance 2 / (9 * filters) and starts their biases at zero. SWA says neither which classifier
it used nor whether it normalised; its contrastive runs need `projection=True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from consilience.models.spec import (
    PROJECTION_SIZE,
    Classifier,
    ModelSpec,
    flattened_size,
    hidden_layers,
    image_channels,
    projection_layers,
)


@dataclass(frozen=True)
class VGG(ModelSpec):
    """Blocks of padded 3x3 convolutions, a pooling after each block, and the average over what is left."""

    blocks: ClassVar[tuple[tuple[int, ...], ...]]

    batch_norm: bool = True
    bias: bool = True
    classifier: Literal["linear", "nib"] = "linear"
    projection: bool = False

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network that pools five times, for images of at least 32x32; larger ones are averaged."""
        layers: list[nn.Module] = []
        channels = image_channels(self.name, shape)
        for block in self.blocks:
            for filters in block:
                layers.append(nn.Conv2d(channels, filters, 3, padding=1, bias=self.bias))
                layers.extend([nn.BatchNorm2d(filters)] if self.batch_norm else [])
                layers.append(nn.ReLU())
                channels = filters
            layers.append(nn.MaxPool2d(2))
        flattened_size(self.name, layers, shape)  # refuses images that the poolings would shrink to nothing
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if self.classifier == "nib":
            for _ in range(2):
                layers += [nn.Dropout(0.5), *hidden_layers(channels, (channels,), bias=self.bias)]
        if self.projection:
            layers += projection_layers(channels, bias=self.bias)
        width = PROJECTION_SIZE if self.projection else channels
        return Classifier(nn.Sequential(*layers), nn.Linear(width, outputs, bias=self.bias))
