"""ResNet-50 for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from consilience.models.spec import (
    PROJECTION_SIZE,
    Classifier,
    ModelSpec,
    image_channels,
    projection_layers,
)

_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first block
_EXPANSION = 4


def _normalised(inputs: int, filters: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A padded convolution without bias, and the batch normalisation that makes one needless."""
    convolution = nn.Conv2d(inputs, filters, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(filters)]


class Bottleneck(nn.Module):
    """A residual block: 1x1, 3x3 (which takes the stride) and 1x1 convolutions, added to a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.residual = nn.Sequential(
            *_normalised(inputs, width, 1),
            nn.ReLU(),
            *_normalised(width, width, 3, stride),
            nn.ReLU(),
            *_normalised(width, outputs, 1),
        )
        # An empty Sequential is the identity.
        changes_shape = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*(_normalised(inputs, outputs, 1, stride) if changes_shape else []))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The ReLU of residual plus shortcut."""
        activated: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return activated


@final
@dataclass(frozen=True)
class ResNet50Cifar(ModelSpec):
    """ResNet-50 for small images with a projection 2048-2048-256 (MOON on CIFAR-100 and Tiny-ImageNet).

    The first convolution is 3x3 with stride 1 and no pooling follows it. The logits are computed from the
    projection, which therefore belongs to the body. The release draws convolution weights from He's normal
    distribution over the fan-out.
    """

    name: ClassVar[str] = "resnet50-cifar"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network for images of every size: the last stage is averaged."""
        layers = [*_normalised(image_channels(self.name, shape), 64, 3), nn.ReLU()]
        channels = 64
        for width, blocks, stride in _STAGES:
            for block in range(blocks):
                layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
                channels = width * _EXPANSION
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *projection_layers(channels)]
        return Classifier(nn.Sequential(*layers), nn.Linear(PROJECTION_SIZE, outputs))
