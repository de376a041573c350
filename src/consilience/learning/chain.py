"""Models whose hidden units can change places: plain chains of linear and convolutional layers.

A unit is a row of a linear layer or a filter of a convolution. Where every layer reads the one before it and
what lies between treats all units alike, the units of a layer may be put into any order, as long as the next
layer's columns follow. After images were flattened several columns in a row belong to one unit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from consilience.learning.layers import RowBatchNorm
from consilience.models.spec import Classifier
from consilience.types import Floats, IntArray

NEEDS_CHAIN = "hidden units are matched in plain chains of linear and convolutional layers"
"""Why a method refuses other models: what such a reason begins with."""

UNITWISE = (
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""Layers that do the same with every unit."""


def obstacle(module: nn.Module) -> str | None:
    """What keeps the hidden units of a task's model from changing places, in a few words, or None."""
    trained = all(value.requires_grad for value in module.parameters())
    return _obstacle(module) if trained else "parameters that are not trained"


def _obstacle(module: nn.Module) -> str | None:
    images, seen = False, set[int]()
    for layer in _steps(module):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            if id(layer) in seen:
                return "a layer that is used twice"
            if isinstance(layer, nn.Conv2d) and layer.groups != 1:
                return "a convolution in groups"
            if isinstance(layer, nn.Linear) and images:
                return "a linear layer on images that were not flattened"
            seen.add(id(layer))
            images = isinstance(layer, nn.Conv2d)
        elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            images = False
        elif isinstance(layer, RowBatchNorm):
            return "batch normalisation"
        elif not isinstance(layer, UNITWISE):
            return f"a layer of type {type(layer).__name__}"
    return None if seen else "no linear or convolutional layer"


def _steps(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a chain, in the order in which they run; a module that is no chain comes as a whole."""
    if type(module) is Classifier or type(module) is nn.Sequential:
        for child in (module.body, module.head) if isinstance(module, Classifier) else module:
            yield from _steps(child)
    else:
        yield module


def by_unit(weight: Tensor, units: int) -> Tensor:
    """[outputs, units, ...] a layer's weight, its columns by the units of the layer before."""
    return weight.reshape(len(weight), units, -1)


def reordered(weight: Tensor, units: int, sources: Tensor) -> Tensor:
    """A layer's weight when the layer before it has other units.

    Args:
        weight: [outputs, columns, ...] of a linear or convolutional layer.
        units: How many units the layer before had.
        sources: [new units] which of them each unit was; `units` for a new one, whose columns are 0.
    """
    columns = by_unit(weight, units)
    padded = nn.functional.pad(columns, (0, 0, 0, 1))
    chosen = padded[:, sources]
    return chosen.reshape(len(weight), -1, *weight.shape[2:])


def assigned(profits: Floats) -> IntArray:
    """[rows] another column for every row, such that the sum of their profits is the largest."""
    from scipy.optimize import linear_sum_assignment  # which takes a while, and is for few

    rows, columns = linear_sum_assignment(profits, maximize=True)
    return np.asarray(columns[np.argsort(rows)], dtype=np.int64)
