"""Curvature diagonals from squared gradients (empirical Fisher and Gauss-Newton).

With g_i the gradient of the loss of sample i and G_b the gradient of a batch's mean loss:

| kind              | formula (element-wise squares)                               |
|-------------------|--------------------------------------------------------------|
| `per_sample_sum`  | sum_i g_i^2: diag(J'J), J the Jacobian of the sample losses  |
| `per_sample_mean` | the same over n: the textbook empirical Fisher               |
| `batch_sum`       | sum_b G_b^2: the DecHW release                               |
| `batch_mean`      | the mean over batches: OpenFL's FedCurv                      |
| `full_grad_sq`    | (gradient of the mean loss)^2                                |
| `true_fisher`     | mean_i E_y g_i(y)^2, y from the model's own prediction       |
| `ggn`             | diag mean_i J_z' H_loss J_z, z the prediction                |

For classification (without class weights) the last two are equal. A problem says which of them it has.

All are taken in evaluation mode, without weight decay or penalties. Linear and convolutional layers
use a closed form from layer inputs and output gradients (one backward pass); others use `vmap(grad)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from consilience import tree
from consilience.kernels.squares import row_squares
from consilience.learning.task import Task, hooked, mean_loss
from consilience.types import Batch, Params, State

Kind = Literal[
    "per_sample_sum", "per_sample_mean", "batch_sum", "batch_mean", "full_grad_sq", "true_fisher", "ggn"
]

MeanKind = Literal["per_sample_mean", "true_fisher", "ggn"]
"""The kinds that are means over samples, of squares of gradients of single ones."""

OF_BATCHES: tuple[Kind, ...] = ("batch_sum", "batch_mean")
"""The kinds that depend on how the data are cut into batches."""

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""A function that gives the loss of every row, from predictions and targets."""


def contribution(task: Task, names: tuple[str, ...], kind: Kind, batch: Batch, model: State) -> Params:
    """What one batch adds to the diagonal of the named parameters."""
    if kind in _OF_BATCH_GRADIENTS:
        return _OF_BATCH_GRADIENTS[kind](task, model, batch, names)
    found = (
        sum_of_squares(task, model, probe.rows, names, probe.row_loss, probe.weight)
        for probe in probes(task, model, batch, kind)
    )
    return reduce(tree.add, found)


def finish(kind: Kind, total: Params, rows: Tensor, batches: Tensor) -> Params:
    """The diagonal, from what all batches added to it.

    Args:
        kind: Which diagonal.
        total: The sum of all contributions.
        rows: How many rows the batches had together.
        batches: How many batches there were.
    """
    if kind in ("per_sample_sum", "batch_sum"):
        return total
    if kind == "full_grad_sq":
        return {name: (value / rows) ** 2 for name, value in total.items()}
    return tree.scale(1 / (batches if kind == "batch_mean" else rows), total)


class Probe(NamedTuple):
    """Rows whose gradients make up curvature, each gradient taken on its own."""

    rows: Batch
    row_loss: RowLoss
    """What the gradient of every row is taken of."""
    weight: Tensor
    """[batch] how much a row counts."""


def probes(task: Task, model: State, batch: Batch, kind: Kind) -> Iterator[Probe]:
    """What to take gradients of, so that their weighted squares are the curvature of a batch's samples."""
    if kind in ("per_sample_sum", "per_sample_mean"):
        yield Probe(batch, task.loss, batch.weight)
        return
    prediction = task.forward(model, batch, training=False).prediction.detach()
    if kind == "true_fisher":
        # The exact expectation: every possible target in turn, weighted by its predicted probability.
        for targets, chances in task.problem.possible_targets(prediction):
            yield Probe(batch._replace(targets=targets), task.loss, batch.weight * chances)
        return
    # The diagonal of J'HJ: with H_loss = sum_c s_c s_c', it is the sum of the squares of J's_c. The factor
    # rides in place of the targets, so that per-row code gets its own row of it.
    for factor in task.problem.hessian_factors(prediction, batch.targets):
        yield Probe(batch._replace(targets=factor), _along, batch.weight)


def _batch_gradient(task: Task, model: State, batch: Batch, names: tuple[str, ...]) -> Params:
    """The gradient of the batch's mean loss."""

    def loss(chosen: Params) -> Tensor:
        prediction = task.forward(_with(model, chosen), batch, training=False).prediction
        return mean_loss(task.loss(prediction, batch.targets), batch.weight)

    grads: Params = torch.func.grad(loss)({name: model["params"][name] for name in names})
    return grads


def _squared_batch(task: Task, model: State, batch: Batch, names: tuple[str, ...]) -> Params:
    grads = _batch_gradient(task, model, batch, names)
    return tree.mul(grads, grads)


def _summed_gradient(task: Task, model: State, batch: Batch, names: tuple[str, ...]) -> Params:
    return tree.scale(batch.weight.sum(), _batch_gradient(task, model, batch, names))


def _along(prediction: Tensor, factor: Tensor) -> Tensor:
    """[batch] the inner product of every row's prediction with a factor."""
    return (prediction * factor).flatten(1).sum(-1)


_OF_BATCH_GRADIENTS: dict[Kind, Callable[[Task, State, Batch, tuple[str, ...]], Params]] = {
    "batch_sum": _squared_batch,
    "batch_mean": _squared_batch,
    "full_grad_sq": _summed_gradient,
}


def sum_of_squares(
    task: Task, model: State, batch: Batch, names: tuple[str, ...], row_loss: RowLoss, weight: Tensor
) -> Params:
    """`sum_i weight_i g_i^2` for the named parameters, by the closed form wherever it holds.

    Args:
        task: The architecture.
        model: `params` and `buffers`.
        batch: The rows i.
        names: The parameters.
        row_loss: What the gradient of every row is taken of.
        weight: [batch] how much a row counts.
    """
    layers = _closed_form_layers(task, batch, names)
    covered = {f"{layer}.{name}" for layer, module in layers.items() for name, _ in module.named_parameters()}
    others = tuple(name for name in names if name not in covered)
    squares: Params = {}
    if layers:
        squares |= closed_form_squares(task, model, batch, layers, row_loss, weight)
    if others:
        squares |= per_sample_squares(task, model, batch, others, row_loss, weight)
    return {name: squares[name] for name in names}


def per_sample_squares(
    task: Task, model: State, batch: Batch, names: tuple[str, ...], row_loss: RowLoss, weight: Tensor
) -> Params:
    """The sum of squares by `vmap(grad)`: for any architecture, with one gradient of memory per row.

    The arguments are those of `sum_of_squares`.
    """

    def loss(chosen: Params, inputs: Tensor, target: Tensor) -> Tensor:
        row = Batch(inputs[None], target[None], torch.ones_like(weight[:1]), batch.key)
        prediction = task.forward(_with(model, chosen), row, training=False).prediction
        return row_loss(prediction, row.targets).sum()

    chosen, gradient = {name: model["params"][name] for name in names}, torch.func.grad(loss)
    try:
        grads = torch.func.vmap(gradient, in_dims=(None, 0, 0))(chosen, batch.inputs, batch.targets)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # of a model that looks at numbers, say
        rows = [gradient(chosen, *row) for row in zip(batch.inputs, batch.targets, strict=True)]
        grads = {name: torch.stack([row[name] for row in rows]) for name in names}
    return {name: torch.tensordot(weight, value * value, 1) for name, value in grads.items()}


def closed_form_squares(
    task: Task, model: State, batch: Batch, layers: dict[str, nn.Module], row_loss: RowLoss, weight: Tensor
) -> Params:
    """The sum of squares from layer inputs a and output gradients d: (w d^2)' a^2 for a linear layer.

    It takes one backward pass. A convolution's per-row gradient is d times its unfolded input, squared and
    summed over rows. The arguments are those of `sum_of_squares`, but for the layers in place of their
    parameters' names.
    """
    inputs, deltas = layer_passes(task, model, batch, layers, row_loss)
    squares: Params = {}
    for layer, module in layers.items():
        squares |= {
            f"{layer}.{k}": v for k, v in _layer_squares(module, inputs[layer], deltas[layer], weight)
        }
    return squares


def layer_passes(
    task: Task, model: State, batch: Batch, layers: dict[str, nn.Module], row_loss: RowLoss
) -> tuple[Params, Params]:
    """What goes into each of some layers, and the gradient of the rows' losses by what comes out of it.

    A zero added to each layer's output lets that gradient be taken, in one backward pass for all layers. The
    layers run once in a pass. The arguments are those of `closed_form_squares`.
    """

    def loss(zeros: Params) -> tuple[Tensor, Params]:
        inputs: Params = {}

        def probe(layer: str, given: Tensor, output: Tensor) -> Tensor:
            inputs[layer] = given
            return output + zeros[layer]

        with hooked(layers, probe):
            prediction = task.forward(model, batch, training=False).prediction
        return row_loss(prediction, batch.targets).sum(), inputs

    shapes = task.trace(batch.inputs.shape, batch.inputs.dtype).layers
    zeros = {layer: batch.weight.new_zeros(shapes[layer]) for layer in layers}
    deltas, inputs = torch.func.grad(loss, has_aux=True)(zeros)
    return inputs, deltas


def _layer_squares(
    module: nn.Module, inputs: Tensor, delta: Tensor, weight: Tensor
) -> list[tuple[str, Tensor]]:
    if isinstance(module, nn.Linear):
        weighted = weight[:, None] * delta * delta
        squares = [("weight", weighted.T @ (inputs * inputs))]
        bias = weighted.sum(0)
    else:
        assert isinstance(module, nn.Conv2d)
        of_weight, bias = row_squares(inputs, delta, weight, *sizes_of(module))
        squares = [("weight", of_weight)]
    return [*squares, ("bias", bias)] if module.bias is not None else squares


def sizes_of(module: nn.Conv2d) -> tuple[tuple[int, int], ...]:
    """The size of a plain convolution's filters, its padding and its stride."""
    assert not isinstance(module.padding, str)
    return tuple((one[0], one[1]) for one in (module.kernel_size, module.padding, module.stride))


def _closed_form_layers(task: Task, batch: Batch, names: tuple[str, ...]) -> dict[str, nn.Module]:
    """The layers among the named parameters for which the closed form holds, whole layers only."""
    modules = dict(task.skeleton.named_modules())
    uses = Counter(id(p) for _, p in task.skeleton.named_parameters(remove_duplicate=False))
    shapes = task.trace(batch.inputs.shape, batch.inputs.dtype).layers
    layers: dict[str, nn.Module] = {}
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in names):
        module, shape = modules[layer], shapes.get(layer, torch.Size())
        own = all(f"{layer}.{name}" in names and uses[id(p)] == 1 for name, p in module.named_parameters())
        per_row = shape[:1] == batch.inputs.shape[:1]
        flat = isinstance(module, nn.Linear) and len(shape) == 2
        plain = {name for name, _ in module.named_parameters()} <= {"weight", "bias"}  # no parametrization
        if own and plain and per_row and (flat or is_plain_convolution(module)):
            layers[layer] = module
    return layers


def is_plain_convolution(module: nn.Module) -> bool:
    """Whether a module is a convolution whose inputs `patches` can list."""
    return (
        isinstance(module, nn.Conv2d)
        and module.groups == 1
        and module.dilation == (1, 1)
        and not isinstance(module.padding, str)
        and module.padding_mode == "zeros"
    )


def _with(model: State, chosen: Params) -> State:
    return {"params": {**model["params"], **chosen}, "buffers": model["buffers"]}
