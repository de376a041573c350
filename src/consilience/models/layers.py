"""Layers that several convolutional networks share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def stage(inputs: int, filters: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    """The layers of one stage: convolution, ReLU, 2x2 max-pooling."""
    return [nn.Conv2d(inputs, filters, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


def stack(convolutions: Sequence[nn.Module], dense: Sequence[nn.Module]) -> nn.Sequential:
    """A body: convolutions, then fully connected layers on what they give, flattened."""
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)
