"""What every model shares: the specification a configuration names, the two-part network, small builders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from consilience.errors import UserError

PROJECTION_SIZE = 256
"""How many features MOON's projection gives."""


class Classifier(nn.Module):
    """A network in two parts: `body` turns inputs into features, `head` (registered last) into logits."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """The representation `[batch, width]` that the head reads."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """The logits `[batch, outputs]`."""
        logits: Tensor = self.head(self.features(x))
        return logits


class ModelSpec(ABC):
    """A named architecture: a frozen dataclass whose fields are its options.

    Weights start from torch's own defaults for each layer and are drawn from torch's default generator, so
    that a caller decides the seed. Where a paper's release starts differently, the specification says so.
    """

    name: ClassVar[str]

    @abstractmethod
    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A freshly initialised network.

        Args:
            shape: The shape of one input, without a batch axis; (channels, height, width) for images.
            outputs: How many numbers it gives for an input: the classes, where inputs are classified.

        Raises:
            UserError: The architecture cannot take inputs of this shape.
        """


def parameter_count(spec: ModelSpec, shape: tuple[int, ...], outputs: int) -> int | None:
    """How many parameters a model would have, without making it; None where nobody can count so far."""
    try:
        with torch.device("meta"):
            return sum(value.numel() for value in spec.build(shape, outputs).parameters())
    except (RuntimeError, OverflowError, TypeError):  # of sizes that torch cannot hold
        return None


def hidden_layers(inputs: int, widths: Sequence[int], *, bias: bool = True) -> list[nn.Module]:
    """Fully connected layers of the given widths, a ReLU after each."""
    sizes = (inputs, *widths)
    return [
        layer
        for before, after in zip(sizes, widths, strict=False)
        for layer in (nn.Linear(before, after, bias=bias), nn.ReLU())
    ]


def projection_layers(width: int, *, bias: bool = True) -> list[nn.Module]:
    """MOON's projection: width - width, ReLU, width - 256; the output layer reads its result."""
    return [*hidden_layers(width, (width,), bias=bias), nn.Linear(width, PROJECTION_SIZE, bias=bias)]


def image_channels(name: str, shape: tuple[int, ...]) -> int:
    """The channels of an image shape; anything else is refused in the name of the model."""
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"model {name} needs images of shape (channels, height, width), got {shape}")
    return shape[0]


def flattened_size(name: str, layers: Sequence[nn.Module], shape: tuple[int, ...]) -> int:
    """How many numbers `layers` turn one image into; images that are too small are refused.

    Args:
        name: The model that asks, for the text of an error.
        layers: Its convolutions and what is between them.
        shape: The channels, height and width of an image.
    """
    windows = [window for layer in layers if (window := _window(layer))]
    smallest = 1
    for kernel, stride, padding in reversed(windows):
        smallest = (smallest - 1) * stride + kernel - 2 * padding
    _, height, width = shape
    if min(height, width) < smallest:
        raise UserError(f"model {name} needs images of at least {smallest}x{smallest}, got shape {shape}")
    for kernel, stride, padding in windows:
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    filters = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)]
    return filters[-1] * height * width


def _window(layer: nn.Module) -> tuple[int, int, int] | None:
    """The kernel, stride and padding of a layer that changes an image's size; None for all others."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
    if isinstance(layer, nn.MaxPool2d):
        return 2, 2, 0  # the only pooling these architectures use
    return None
