"""Kronecker-factored curvature of layers (k-FAC).

Martens, Grosse: Optimizing Neural Networks with Kronecker-factored Approximate Curvature (ICML 2015);
convolutions as in Grosse, Martens: A Kronecker-factored Approximate Fisher Matrix for Convolution Layers
(ICML 2016). With a the inputs of a layer (with a 1 at the end where it has a bias), d the gradient of a
sample's loss by its outputs, and t the T places at which the layer works (one for a dense layer; the
positions of a convolution or of a sequence)

    A = mean_i sum_t a_it a_it',   B = mean_i (1/T) sum_t d_it d_it',   curvature = A (x) B

of a weight matrix W [out, in], the bias as its last column: the curvature times W is B W A. Gradients are
those of `curvature.probes`, taken in evaluation mode.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from consilience import tree
from consilience.errors import UserError
from consilience.kernels.squares import patches
from consilience.learning.curvature import MeanKind, is_plain_convolution, layer_passes, probes, sizes_of
from consilience.learning.task import Task
from consilience.types import Batch, Params, State

INPUTS, OUTPUTS = "input_moments", "output_moments"
"""The groups that hold A and B; a layer goes by the name of its weight."""


def factored(task: Task, params: Params, which: tree.Layers) -> tuple[str, ...]:
    """The weights of those among the chosen layers that have factors: dense layers and plain convolutions."""
    modules = dict(task.skeleton.named_modules())
    uses = Counter(id(p) for _, p in task.skeleton.named_parameters(remove_duplicate=False))
    chosen = []
    for names in tree.select_layers(params, which):
        module = modules[names[0].rpartition(".")[0]]
        own = {name.rpartition(".")[2]: uses[id(value)] for name, value in module.named_parameters()}
        plain = own.keys() <= {"weight", "bias"} and set(own.values()) == {1}  # neither shared nor computed
        plain = plain and len(own) == len(names)  # and all of it is trained
        if plain and (isinstance(module, nn.Linear) or is_plain_convolution(module)):
            chosen.append(next(name for name in names if name.rpartition(".")[2] == "weight"))
    if not chosen:
        raise UserError(f"Kronecker factors need a dense or convolutional layer, and layers {which} has none")
    return tuple(chosen)


def bias_of(weight: str) -> str:
    """The name of the bias that goes with a weight."""
    return f"{weight.removesuffix('weight')}bias"


def matrix(params: Params, weight: str, front: int = 0) -> Tensor:
    """[..., out, in] a layer as one matrix, with its bias, if it has one, as the last column.

    Args:
        params: The parameters.
        weight: The name of the layer's weight.
        front: How many axes are in front of those of the layer, e.g. 1 where messages are stacked.
    """
    flat, bias = params[weight].flatten(front + 1), params.get(bias_of(weight))
    return flat if bias is None else torch.cat((flat, bias[..., None]), -1)


def divided(layer: Tensor, weight: str, like: Params) -> Params:
    """The weight and the bias in the matrix of a layer, the inverse of `matrix`; `like` gives the shapes."""
    shape, bias = like[weight].shape, bias_of(weight)
    if bias not in like:
        return {weight: layer.reshape(shape)}
    return {weight: layer[:, :-1].reshape(shape), bias: layer[:, -1]}


def zeros(params: Params, weights: tuple[str, ...]) -> State:
    """Factors of no samples, for layers given by their weights."""
    shapes = {name: matrix(params, name).shape for name in weights}
    some = params[weights[0]]
    return {
        group: {
            name: torch.zeros(shape[axis], shape[axis], dtype=some.dtype, device=some.device)
            for name, shape in shapes.items()
        }
        for group, axis in ((INPUTS, 1), (OUTPUTS, 0))
    }


def contribution(task: Task, weights: tuple[str, ...], kind: MeanKind, batch: Batch, model: State) -> State:
    """What one batch adds to n A and n B of layers given by their weights."""
    modules = dict(task.skeleton.named_modules())
    layers = {name.rpartition(".")[0]: modules[name.rpartition(".")[0]] for name in weights}
    shapes = task.trace(batch.inputs.shape, batch.inputs.dtype).layers
    for layer in layers:
        if shapes.get(layer, torch.Size())[:1] != batch.inputs.shape[:1]:
            raise UserError(f"Kronecker factors need layers that run once for every row; {layer} does not")
    first: Params = {}
    second = zeros(model["params"], weights)[OUTPUTS]
    for probe in probes(task, model, batch, kind):
        inputs, deltas = layer_passes(task, model, probe.rows, layers, probe.row_loss)
        for name, (layer, module) in zip(weights, layers.items(), strict=True):
            places = _places(module, deltas[layer])
            second[name] = second[name] + _moment(places, probe.weight) / places.shape[1]
            if name not in first:  # every probe sees the same inputs
                bias = bias_of(name) in model["params"]
                first[name] = _moment(_given(module, inputs[layer], bias=bias), batch.weight)
    return {INPUTS: first, OUTPUTS: second}


def _given(module: nn.Module, inputs: Tensor, *, bias: bool) -> Tensor:
    """[batch, places, in] the inputs at every place, with a 1 for the bias."""
    if isinstance(module, nn.Conv2d):
        given = patches(inputs, *sizes_of(module))
    else:
        given = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    return torch.cat((given, torch.ones_like(given[..., :1])), -1) if bias else given


def _places(module: nn.Module, outputs: Tensor) -> Tensor:
    """[batch, places, out] what is said of a layer's outputs, place by place."""
    if isinstance(module, nn.Conv2d):
        return outputs.flatten(2).transpose(1, 2)
    return outputs.reshape(len(outputs), -1, outputs.shape[-1])


def _moment(rows: Tensor, weight: Tensor) -> Tensor:
    """`sum_i weight_i sum_t r_it r_it'` of [batch, places, size]."""
    weighted = rows * weight[:, None, None]
    return weighted.flatten(0, 1).T @ rows.flatten(0, 1)


def packed(symmetric: Tensor) -> Tensor:
    """[..., size (size + 1) / 2] the upper triangle of symmetric matrices [..., size, size]."""
    size = symmetric.shape[-1]
    rows, columns = torch.triu_indices(size, size, device=symmetric.device)
    return symmetric[..., rows, columns]


def unpacked(triangle: Tensor, size: int) -> Tensor:
    """[..., size, size] symmetric matrices from their upper triangles, the inverse of `packed`."""
    row = torch.arange(size, device=triangle.device)
    low, high = torch.minimum(row[:, None], row), torch.maximum(row[:, None], row)
    return triangle[..., low * size - low * (low - 1) // 2 + high - low]
