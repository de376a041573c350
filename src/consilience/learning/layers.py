"""Layers that know which rows count, and that can run for many clients at once.

Inside the engine a batch may be padded, and many clients train side by side. Batch statistics must
then skip the padding. `convert` swaps torch's own layers for such ones; what they need to know arrives as
non-persistent buffers, so a call stays a pure function.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer

from consilience.errors import UserError, described
from consilience.kernels.convolution import Convolution
from consilience.kernels.pooling import Pooling
from consilience.learning.recurrent import unrolled
from consilience.torch_internals import BatchNorm, batch_normalised

ROWS = "rows"  # buffer of RowBatchNorm: [batch] 1 for rows that count, or [0] if all do
ANY_LAYOUT = (nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Dropout, nn.Dropout2d, nn.BatchNorm2d, nn.Identity)
"""Layers that take images however they lie in memory."""


class RowBatchNorm(nn.Module):
    """Batch normalisation whose training statistics are taken over the rows that count."""

    def __init__(self, plain: BatchNorm) -> None:
        super().__init__()
        if plain.running_mean is None:
            raise UserError("batch normalisation without running statistics is not supported")
        self.eps, self.momentum = plain.eps, plain.momentum
        self.weight, self.bias = plain.weight, plain.bias
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.rows: Tensor
        for name, value in plain.named_buffers(recurse=False):
            self.register_buffer(name, value)
        self.register_buffer(ROWS, torch.ones(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [batch, channels, ...]; in training mode also move the running statistics."""
        weight, bias = self.weight, self.bias
        if weight is None:
            weight, bias = torch.ones_like(self.running_mean), torch.zeros_like(self.running_mean)
        several = x.numel() > x.shape[1]  # numbers of each channel
        if self.training and not len(self.rows) and several and self.momentum is not None:
            # Where all rows count torch's own kernel is the fastest.
            whole, self.running_mean, self.running_var = batch_normalised(
                x, weight, bias, self.running_mean, self.running_var, self.momentum, self.eps
            )
            self.num_batches_tracked = self.num_batches_tracked + 1
            return whole
        wide = x.to(self.running_mean.dtype)  # statistics of rounded values are worth their full precision
        if not self.training:
            return _affine(wide, self.running_mean, self.running_var, weight, bias, self.eps).to(x.dtype)
        rows = self.rows.to(wide.dtype) if len(self.rows) else wide.new_ones(len(x))
        normalised, mean, variance = _Normalise.apply(  # type: ignore[no-untyped-call]
            wide, rows, weight, bias, self.eps
        )
        self._move_statistics(mean.detach(), variance.detach(), rows.sum() * x[0, 0].numel())
        return cast(Tensor, normalised).to(x.dtype)

    def _move_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        self.num_batches_tracked = self.num_batches_tracked + 1
        rate = 1.0 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean = self.running_mean + rate * (mean - self.running_mean)
        self.running_var = self.running_var + rate * (unbiased - self.running_var)


class _Normalise(torch.autograd.Function):
    """Batch normalisation over the rows that count; also gives their mean and variance.

    Images are large and passes over them cost time, so the gradient is written out: autograd's own would
    take three times as many.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = _moments(x, rows)
        return _affine(x, mean, variance, weight, bias, eps), mean, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, rows, weight, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, rows, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, weight = ctx.saved_tensors
        mean, variance = _moments(x, rows)  # anew, because gradients of second order depend on them too
        deviation = torch.rsqrt(variance + ctx.eps)
        centred = x - _spread(mean, x)
        axes = [0, *range(2, x.ndim)]
        of_bias = grad.sum(axes)
        of_weight = (grad * centred).sum(axes) * deviation
        share = rows[:, None] / (rows.sum() * x[0, 0].numel())
        scale = weight * deviation
        constant = -share * (scale * of_bias)  # [batch, channels], as is the next
        slope = -share * (scale * deviation * of_weight)
        through_mean = torch.addcmul(_spread(constant, x), grad, _spread(scale, x))
        of_x = torch.addcmul(through_mean, centred, _spread(slope, x))
        return of_x, None, of_weight, of_bias, None


def _moments(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel over the rows that count, from those of each row."""
    if x.ndim > 2:
        variances, means = torch.var_mean(x, dim=list(range(2, x.ndim)), correction=0)
    else:
        variances, means = torch.zeros_like(x), x
    share = (rows / rows.sum())[:, None]
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean).square())).sum(0)


def _affine(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    scale = weight * torch.rsqrt(variance + eps)
    return torch.addcmul(_spread(bias - mean * scale, x), x, _spread(scale, x))


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """[channels] or [batch, channels] numbers, so that they broadcast to [batch, channels, ...]."""
    return values.reshape(*values.shape, *[1] * (x.ndim - 2))


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module that shares no tensor with it.

    Some of what torch refuses to copy is copied all the same: results that are kept as attributes (torch's
    older weight normalisation does that) as plain numbers, and buffers whose size is not known yet.
    """
    kept = (value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor))
    known: dict[int, Tensor] = {id(value): value.detach().clone() for value in kept if not value.is_leaf}
    for value in module.buffers():
        if isinstance(value, UninitializedBuffer):
            known[id(value)] = cast(Any, UninitializedBuffer)(device=value.device, dtype=value.dtype)
    try:
        return copy.deepcopy(module, known)
    except Exception as error:  # whatever the parts of a user's module raise
        raise UserError(
            f"the model cannot be copied ({described(error)}); it may hold no files, locks or kept results"
        ) from error


def convert(module: nn.Module) -> nn.Module:
    """A copy of a module with torch's batch normalisation replaced by the layer above.

    Recurrent layers and convolutions become those that can run for many clients at once. Convolutions and
    pooling may lay images out in memory as they like where nobody else can see it, and a ReLU beside pooling
    becomes part of it.
    """
    wrapper = nn.ModuleList([copied(module)])  # so that the root itself can be replaced
    replaced: dict[int, nn.Module] = {}  # a layer that is used in two places stays one layer
    for parent in list(wrapper.modules()):
        free = _free_layers(parent)
        _join_relus(parent, free)
        for name, child in _children(parent):
            if isinstance(child, BatchNorm) and id(child) not in replaced:
                replaced[id(child)] = RowBatchNorm(child)
            elif isinstance(child, nn.Conv2d) and Convolution.fits(child):
                replaced.setdefault(id(child), Convolution.of(child, free=child in free))
            elif isinstance(child, nn.MaxPool2d) and Pooling.fits(child) and child in free:
                replaced.setdefault(id(child), Pooling.of(child))
            elif id(child) not in replaced and (recurrent := unrolled(child)) is not None:
                replaced[id(child)] = recurrent
            if id(child) in replaced:
                parent.register_module(name, replaced[id(child)])
    return wrapper[0]


def _children(parent: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a module by their places in it: one that has two places comes twice."""
    inside = parent.named_modules(remove_duplicate=False)
    return [(name, child) for name, child in inside if name and "." not in name]


def _free_layers(parent: nn.Module) -> list[nn.Module]:
    """Layers of a Sequential whose images only layers read that take any layout, until one flattens them."""
    found: list[nn.Module] = []
    free = False
    for layer in reversed(list(parent.children()) if isinstance(parent, nn.Sequential) else []):
        free = isinstance(layer, nn.Flatten) or (free and isinstance(layer, ANY_LAYOUT))
        if free:
            found.append(layer)
    return found


def _join_relus(parent: nn.Module, free: list[nn.Module]) -> None:
    """Put a ReLU before or after pooling into that layer: there are four times fewer numbers after it."""
    if type(parent) is not nn.Sequential:
        return
    for place in range(1, len(parent)):
        pair = (parent[place - 1], parent[place])
        pools = [layer for layer in pair if Pooling.fits(layer) and layer in free]
        if len(pools) == 1 and any(type(layer) is nn.ReLU for layer in pair):
            parent[place - 1] = Pooling.of(cast(nn.MaxPool2d, pools[0]), relu=True)
            parent[place] = nn.Identity()


def skeleton(module: nn.Module) -> nn.Module:
    """A copy of a module without memory for its tensors (on the meta device); shared tensors stay shared."""
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        blank = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(blank, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)
