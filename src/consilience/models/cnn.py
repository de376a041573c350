"""The small convolutional networks of the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

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


def _stage(inputs: int, filters: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    """Convolution, ReLU, 2x2 max-pooling."""
    return [nn.Conv2d(inputs, filters, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


def _stack(convolutions: Sequence[nn.Module], dense: Sequence[nn.Module]) -> nn.Sequential:
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


@final
@dataclass(frozen=True)
class CifarCNN(ModelSpec):
    """Three 3x3 convolutions 32-64-128 and a layer of 128 (HWA and DecHW on CIFAR-10).

    HWA states neither padding nor the width of the hidden layer; both come from DecHW's release.
    """

    name: ClassVar[str] = "cifar-cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Convolutions keep the size, each pooling halves it."""
        convolutions = [
            *_stage(image_channels(self.name, shape), 32, kernel=3, padding=1),
            *_stage(32, 64, kernel=3, padding=1),
            *_stage(64, 128, kernel=3, padding=1),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(_stack(convolutions, hidden_layers(size, (128,))), nn.Linear(128, classes))


@final
@dataclass(frozen=True)
class FemnistCNN(ModelSpec):
    """Two 5x5 convolutions 32-64 and a layer of 2048 (LEAF; HWA on FEMNIST).

    LEAF is written in TensorFlow, whose layers start from Glorot-uniform weights and zero biases.
    """

    name: ClassVar[str] = "femnist-cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Convolutions keep the size, each pooling halves it."""
        convolutions = [
            *_stage(image_channels(self.name, shape), 32, kernel=5, padding=2),
            *_stage(32, 64, kernel=5, padding=2),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(_stack(convolutions, hidden_layers(size, (2048,))), nn.Linear(2048, classes))


@final
@dataclass(frozen=True)
class MnistCNN(ModelSpec):
    """Two 5x5 convolutions 10-20 and a layer of 50, with dropout (DecHW on MNIST).

    PyTorch's MNIST example until December 2018. `dropout` switches both of its dropout layers.
    """

    name: ClassVar[str] = "mnist-cnn"

    dropout: bool = True

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Pooling comes before each ReLU, and whole channels of the second convolution are dropped."""
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
        return Classifier(_stack(convolutions, dense), nn.Linear(50, classes))


@final
@dataclass(frozen=True)
class FashionCNN(ModelSpec):
    """Two 3x3 convolutions 32-64, one pooling and a layer of 128 (DecHW on Fashion-MNIST)."""

    name: ClassVar[str] = "fashion-cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """As in the release, no ReLU follows the second convolution."""
        convolutions = [
            nn.Conv2d(image_channels(self.name, shape), 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.MaxPool2d(2),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(_stack(convolutions, hidden_layers(size, (128,))), nn.Linear(128, classes))


@final
@dataclass(frozen=True)
class PyTorchCNN(ModelSpec):
    """Two 5x5 convolutions 20-50 and a layer of 500 (FedCurv on MNIST).

    PyTorch's MNIST example from December 2018 to November 2019. The example ends in log-softmax; this model
    gives logits, so that the cross-entropy is the same.
    """

    name: ClassVar[str] = "pytorch-cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Unpadded convolutions, each with ReLU and pooling."""
        convolutions = [
            *_stage(image_channels(self.name, shape), 20, kernel=5),
            *_stage(20, 50, kernel=5),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(_stack(convolutions, hidden_layers(size, (500,))), nn.Linear(500, classes))


@final
@dataclass(frozen=True)
class SimpleCNN(ModelSpec):
    """Two 5x5 convolutions 6-16, layers of 120 and 84, projection to 256 (MOON on CIFAR-10).

    `projection` is MOON's head. The logits are computed from its output, so it belongs to the body.
    """

    name: ClassVar[str] = "simple-cnn"

    projection: bool = True

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Unpadded convolutions; the projection, where there is one, is 84-84-256."""
        convolutions = [
            *_stage(image_channels(self.name, shape), 6, kernel=5),
            *_stage(6, 16, kernel=5),
        ]
        size = flattened_size(self.name, convolutions, shape)
        dense = [*hidden_layers(size, (120, 84)), *(projection_layers(84) if self.projection else [])]
        width = PROJECTION_SIZE if self.projection else 84
        return Classifier(_stack(convolutions, dense), nn.Linear(width, classes))


@final
@dataclass(frozen=True)
class LeNet5(ModelSpec):
    """LeNet-5 with ReLU and max-pooling: convolutions 6-16, layers of 120 and 84 (FAGH on CIFAR-10).

    Images smaller than 32x32 (28x28 digits) are padded by 2 on every side, as in the original.
    """

    name: ClassVar[str] = "lenet5"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Two unpadded 5x5 convolutions, except for the first one on small images."""
        channels = image_channels(self.name, shape)
        convolutions = [
            *_stage(channels, 6, kernel=5, padding=2 if min(shape[1:]) < 32 else 0),
            *_stage(6, 16, kernel=5),
        ]
        size = flattened_size(self.name, convolutions, shape)
        return Classifier(_stack(convolutions, hidden_layers(size, (120, 84))), nn.Linear(84, classes))


@final
@dataclass(frozen=True)
class FaghCNN(ModelSpec):
    """Two 3x3 convolutions 32-64 with batch normalisation, layers of 600 and 120 (FAGH on Fashion-MNIST).

    The parameter count that FAGH prints is that of a widespread tutorial model, which has no activation
    between its fully connected layers; neither has this one. That model's Dropout2d is plain dropout here,
    because the tensor is flat already.
    """

    name: ClassVar[str] = "fagh-cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Only the first convolution is padded."""
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
        return Classifier(_stack(convolutions, dense), nn.Linear(120, classes))


@final
@dataclass(frozen=True)
class PflCNN(ModelSpec):
    """Two 3x3 convolutions 32-64, one pooling, a layer of 128, dropout (pfl-research benchmarks on CIFAR-10).

    The release starts from Glorot-uniform weights (and torch's default biases).
    """

    name: ClassVar[str] = "pfl-cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Classifier:
        """Unpadded convolutions; dropout of 0.25 after them and of 0.5 after the hidden layer."""
        convolutions = [
            nn.Conv2d(image_channels(self.name, shape), 32, 3),
            nn.ReLU(),
            *_stage(32, 64, kernel=3),
            nn.Dropout(0.25),
        ]
        size = flattened_size(self.name, convolutions, shape)
        dense = [*hidden_layers(size, (128,)), nn.Dropout(0.5)]
        return Classifier(_stack(convolutions, dense), nn.Linear(128, classes))
