"""The exact Hessian of a model of one linear layer, e.g. of multinomial logistic regression.

A model z = W x + b has the parameters [W | b], [outputs, features] with a feature of 1 where there is a bias,
taken row by row as one vector. With A_i the Hessian of row i's loss by its outputs, that of the mean loss is

    H = (1/n) sum_i A_i (x) x_i x_i',   A_i = diag(p) - pp' for softmax and cross-entropy (times w_y),

a grid of outputs x outputs blocks, each features x features. For 10 classes of 28 x 28 pixels it takes 246 MB
in float32; what is here gives its products, single blocks and single entries without making it.
Functions add up the rows of a batch; who calls them divides by n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.errors import UserError
from consilience.learning.task import Task, hooked
from consilience.types import Batch, Params, State


@dataclass(frozen=True)
class LinearLayer:
    """The names and sizes of a model's only layer."""

    weight: str
    bias: str | None
    outputs: int
    features: int
    """How many inputs it has, the constant one among them where there is a bias."""

    @classmethod
    def of(cls, params: Params, name: str) -> LinearLayer:
        """The layer of a model; one of any other form is refused in the name of a method."""
        weights = [key for key, value in params.items() if value.ndim == 2]
        if len(weights) == 1:
            (weight,) = weights
            outputs, features = params[weight].shape
            bias = weight.removesuffix("weight") + "bias"
            if params.keys() == {weight}:
                return cls(weight, None, outputs, features)
            if params.keys() == {weight, bias} and params[bias].shape == (outputs,):
                return cls(weight, bias, outputs, features + 1)
        size = sum(value.numel() for value in params.values())
        raise UserError(
            f"{name}: exact Hessians are there for models of one linear layer (model: logistic); this one "
            f"has {size:,} parameters in another form, and each client's Hessian would take "
            f"{hessian_memory(params)}"
        )

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return self.outputs * self.features

    def vector(self, params: Params) -> Tensor:
        """[size] the parameters (or a gradient) as one vector, the rows of [W | b]."""
        if self.bias is None:
            return params[self.weight].reshape(-1)
        return torch.cat([params[self.weight], params[self.bias][:, None]], 1).reshape(-1)

    def params(self, vector: Tensor) -> Params:
        """The named parameters of a vector: the inverse of `vector`."""
        matrix = vector.reshape(self.outputs, self.features)
        if self.bias is None:
            return {self.weight: matrix}
        return {self.weight: matrix[:, :-1], self.bias: matrix[:, -1]}


def hessian_memory(params: Params) -> str:
    """How much memory a whole Hessian of some parameters takes, in words."""
    size = sum(value.numel() for value in params.values())
    return f"{size**2 * max(value.element_size() for value in params.values()) / 1e9:,.3g} GB"


class Rows(NamedTuple):
    """What the Hessian needs to know about the rows of a batch."""

    inputs: Tensor
    """[batch, features] what the layer sees, with a last column of 1 where it has a bias."""
    curvature: Tensor
    """[batch, outputs, outputs] A_i, 0 for padding."""


def rows_of(task: Task, model: State, batch: Batch) -> Rows:
    """The inputs of the layer, and the Hessians of the rows' losses by their outputs.

    Raises:
        UserError: Something comes after the layer, so that the model is not linear.
    """
    layers: dict[str, nn.Module] = {
        name: module for name, module in task.skeleton.named_modules() if isinstance(module, nn.Linear)
    }
    seen: list[tuple[Tensor, Tensor]] = []

    def record(_: str, given: Tensor, output: Tensor) -> Tensor:
        seen.append((given, output))
        return output

    with hooked(layers, record):
        prediction = task.forward(model, batch, training=False).prediction
    if len(seen) != 1 or seen[0][1] is not prediction or seen[0][0].ndim != 2:
        raise UserError("exact Hessians are there where a model's outputs are those of one linear layer")
    inputs = seen[0][0]
    # One that is not trained has no curvature; the layer may be the model itself, which has no name.
    if any(f"{name}.bias".lstrip(".") in model["params"] for name in layers):
        inputs = F.pad(inputs, (0, 1), value=1.0)
    factors = torch.stack(list(task.problem.hessian_factors(prediction, batch.targets)), 1)
    live = torch.where((batch.weight > 0)[:, None, None], factors, 0.0)
    return Rows(torch.where((batch.weight > 0)[:, None], inputs, 0.0), live.mT @ live)


def products(rows: Rows, vectors: Tensor) -> Tensor:
    """[size, k] the sum over rows of their Hessians, times k vectors."""
    outputs, features = rows.curvature.shape[-1], rows.inputs.shape[-1]
    given = vectors.reshape(outputs, features, -1)
    moved = torch.einsum("bf,cfk->bck", rows.inputs, given)
    found = torch.einsum("bck,bf->cfk", rows.curvature @ moved, rows.inputs)
    return found.reshape(outputs * features, -1)


def block(rows: Rows, first: Tensor, second: Tensor) -> Tensor:
    """[features, features] one block of the sum over rows.

    Args:
        rows: The rows.
        first: [outputs] 1 for the output whose parameters the block's rows are, else 0.
        second: [outputs] the same for its columns.
    """
    chosen = torch.einsum("bij,i,j->b", rows.curvature, first, second)
    return rows.inputs.mT @ (chosen[:, None] * rows.inputs)


def entries(rows: Rows, first: Tensor, second: Tensor) -> Tensor:
    """[k] single entries of the sum over rows, at the positions (first, second), [k] whole numbers each."""
    outputs, features = rows.curvature.shape[-1], rows.inputs.shape[-1]
    pairs = (first // features) * outputs + second // features
    curved = rows.curvature.flatten(1).index_select(1, pairs)
    left, right = (rows.inputs.index_select(1, place % features) for place in (first, second))
    return (curved * left * right).sum(0)


def dense(rows: Rows) -> Tensor:
    """[size, size] the whole sum over rows."""
    size = rows.curvature.shape[-1] * rows.inputs.shape[-1]
    found = torch.einsum("bij,bf,bg->ifjg", rows.curvature, rows.inputs, rows.inputs)
    return found.reshape(size, size)
