"""Batch normalisation and dropout that know which rows count and whose randomness to use.

Inside the engine a batch may be padded, and many clients train side by side. Batch statistics must
then skip the padding, and a dropout mask must depend on (seed, round, client, step) alone, never on a
global generator or on the lane a client happens to sit in. `convert` swaps torch's own layers for
these; what they need to know arrives as non-persistent buffers, so a call stays a pure function.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.convolution import Convolution
from consilience.errors import UserError

ROWS = "rows"  # buffer of RowBatchNorm: [batch] 1 for rows that count
KEY = "key"  # buffer of KeyedDropout: 0-d int64


class RowBatchNorm(nn.Module):
    """Batch normalisation whose training statistics are taken over the rows that count."""

    def __init__(self, plain: _BatchNorm) -> None:
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
        wide = x.to(self.running_mean.dtype)  # statistics of rounded values are worth their full precision
        mean, variance = (
            self._batch_statistics(wide) if self.training else (self.running_mean, self.running_var)
        )
        scale, shift = torch.rsqrt(variance + self.eps), -mean
        if self.weight is None:
            shift = shift * scale
        else:
            scale = scale * self.weight
            shift = shift * scale + self.bias
        shape = (1, -1, *[1] * (x.ndim - 2))
        # Images are large: one pass over them in place of four.
        return torch.addcmul(shift.reshape(shape), wide, scale.reshape(shape)).to(x.dtype)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = [0, *range(2, x.ndim)]
        rows = self.rows.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        count = self.rows.sum().to(x.dtype) * (x[0, 0].numel())
        mean = (x * rows).sum(axes) / count
        centred = (x - mean.reshape(1, -1, *[1] * (x.ndim - 2))) * rows
        variance = (centred * centred).sum(axes) / count
        self.num_batches_tracked = self.num_batches_tracked + 1
        seen = self.num_batches_tracked.to(x.dtype)
        rate = 1.0 / seen if self.momentum is None else self.momentum
        unbiased = variance.detach() * count / (count - 1).clamp(min=1)
        self.running_mean = self.running_mean + rate * (mean.detach() - self.running_mean)
        self.running_var = self.running_var + rate * (unbiased - self.running_var)
        return mean, variance


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of (key, layer, position): the same on every device and in every lane."""

    def __init__(self, probability: float, whole_channels: bool, layer: int) -> None:
        super().__init__()
        self.probability, self.whole_channels, self.layer = probability, whole_channels, layer
        self.calls = 0  # within one forward pass of the model, which sets it to 0 before
        self.key: Tensor
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zero entries (or whole channels) with the layer's probability and rescale the others."""
        if not self.training or self.probability == 0:
            return x
        if self.probability >= 1:
            return torch.zeros_like(x)
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.whole_channels else x.shape
        bits = keyed_bits(self.key, self.layer + 100003 * self.calls, shape, x.device)
        self.calls += 1  # a layer that is used again draws again
        kept = bits >= int((self.probability - 0.5) * 2**32)
        return x * kept.to(x.dtype) / (1 - self.probability)


def keyed_bits(key: Tensor, stream: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Uniform int32 numbers that are a pure function of (key, stream, position)."""
    positions = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=device).reshape(shape)
    low = (key & 0x7FFFFFFF).to(torch.int32)
    high = ((key >> 31) & 0x7FFFFFFF).to(torch.int32)
    return _mix(_mix(positions ^ low) ^ (high + stream * 0x1E3779B9 % 2**31))


def _mix(x: Tensor) -> Tensor:
    """A bijective 32-bit hash; int32 products wrap, and the masks make the shifts logical ones."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


def convert(module: nn.Module) -> nn.Module:
    """A copy of a module with torch's batch normalisation and dropout replaced by the layers above.

    Convolutions become those that can run for many clients at once.
    """
    wrapper = nn.ModuleList([copy.deepcopy(module)])  # so that the root itself can be replaced
    replaced: dict[int, nn.Module] = {}  # a layer that is used in two places stays one layer
    dropouts = 0
    for parent in list(wrapper.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.AlphaDropout | nn.FeatureAlphaDropout):
                raise UserError(f"{type(child).__name__} is not supported: its randomness is not the run's")
            if isinstance(child, _BatchNorm) and id(child) not in replaced:
                replaced[id(child)] = RowBatchNorm(child)
            elif isinstance(child, nn.Conv2d) and Convolution.fits(child):
                replaced.setdefault(id(child), Convolution.of(child))
            elif isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                dropouts += 1
                whole_channels = not isinstance(child, nn.Dropout)
                replaced.setdefault(id(child), KeyedDropout(child.p, whole_channels, dropouts))
            if id(child) in replaced:
                parent._modules[name] = replaced[id(child)]
    return wrapper[0]


def skeleton(module: nn.Module) -> nn.Module:
    """A copy of a module without memory for its tensors (on the meta device); shared tensors stay shared."""
    memo: dict[int, object] = {}
    for parameter in module.parameters():
        blank = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(blank, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)
