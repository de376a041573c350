"""The two shapes everything in this library has: named tensors, and named groups of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

Params = dict[str, Tensor]
"""Tensors by parameter name, in the order of the model's layers: `{"fc1.weight": ..., "fc1.bias": ...}`."""

State = dict[str, Params]
"""Groups of tensors by role: `{"params": ..., "buffers": ..., "importance": ...}`.

Hubs, memories, downloads, uploads and contexts all are States. Two levels, never more: that is what
`vmap`, safetensors, a byte counter and a reader can all take. A counter is a 0-d tensor in a group.
"""

Number = float | Tensor
"""A hyper-parameter: a float, or a 0-d tensor where a sweep gives every lane its own value.

A lane is one of the places in which clients train side by side, as one stacked computation.
"""


class Batch(NamedTuple):
    """Some rows of one client's data."""

    inputs: Tensor
    """[batch, ...] normalised inputs, or tokens."""
    targets: Tensor
    """[batch, ...] what the problem asks for, e.g. the numbers of classes."""
    weight: Tensor
    """[batch] 1 for a row that counts, 0 for padding."""
    key: Tensor
    """0-d int64, the source of every random draw made on this batch (dropout)."""
    full: bool = False
    """Whether it is known, before the numbers are, that all rows count."""


IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Booleans = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
