"""Functions inside a model, in a form that can run for many clients at once, with the run's own randomness.

`F.dropout` and its like draw from a global generator, and attention may call kernels that know nothing of
`vmap`. Within a `Rewriting` such calls are answered here: masks and draws are hashes of (key, number of the
draw in this pass, position), the same in every lane, executor and process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from consilience.learning.dropping import dropped, kept
from consilience.learning.randomness import normals, uniforms
from consilience.learning.recurrent import elman, gru, lstm, next_memory
from consilience.torch_internals import looking_inside, weight_normalised


class Rewriting(TorchFunctionMode):
    """A context for one forward pass of a model.

    Args:
        key: 0-d int64, the source of all random draws.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.draws = key, 0

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        rewritten = _REWRITTEN.get(function)
        if rewritten is None:
            return function(*args, **(kwargs or {}))
        return rewritten(self, *args, **(kwargs or {}))

    def stream(self) -> int:
        """The number of the next draw: a layer that is used again draws again."""
        self.draws += 1
        return self.draws


def _dropout(
    mode: Rewriting, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _thinned(mode, input, p, training, whole=False)


def _channel_dropout(
    mode: Rewriting, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _thinned(mode, input, p, training, whole=True)


def _thinned(mode: Rewriting, x: Tensor, probability: float, training: bool, *, whole: bool) -> Tensor:
    """Dropout of entries, or of whole channels."""
    _check(probability)
    if not training or probability == 0:
        return x
    if probability == 1:
        return torch.zeros_like(x)
    return dropped(x, mode.key, mode.stream(), probability, whole)


def _check(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {probability}")


def _alpha_dropout(
    mode: Rewriting, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _self_normalising(mode, input, p, training, whole=False)


def _channel_alpha_dropout(
    mode: Rewriting, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _self_normalising(mode, input, p, training, whole=True)


LOWEST = -1.7580993408473766
"""What SELU tends to towards minus infinity; alpha dropout puts it in place of what it drops."""


def _self_normalising(
    mode: Rewriting, x: Tensor, probability: float, training: bool, *, whole: bool
) -> Tensor:
    """Alpha dropout (Klambauer et al. 2017), which keeps mean 0 and variance 1."""
    _check(probability)
    if not training or probability == 0:
        return x
    if probability == 1:
        return torch.zeros_like(x)
    left = kept(x, mode.key, mode.stream(), probability, whole)
    scale: float = ((1 - probability) * (1 + probability * LOWEST**2)) ** -0.5
    return scale * torch.where(left, x, LOWEST) - scale * LOWEST * probability


def _attention(
    mode: Rewriting,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention by its definition, which has gradients of every order."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        shares = scores.softmax(-1)
    elif attn_mask.dtype == torch.bool:
        shares = torch.where(attn_mask, scores, -torch.inf).softmax(-1)
        shares = torch.where(attn_mask.any(-1, keepdim=True), shares, 0.0)  # nobody to attend to
    else:
        shares = (scores + attn_mask).softmax(-1)
    return _thinned(mode, shares, dropout_p, True, whole=False) @ value


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch written in Python whose own calls are rewritten, too."""
    plain = looking_inside(function)

    def call(mode: Rewriting, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return plain(*args, **kwargs)

    return call


def _weight_norm(_: Rewriting, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.ndim) if axis != dim]
    norm = v.square().sum().sqrt() if dim == -1 else v.square().sum(axes, keepdim=True).sqrt()
    return v * (g / norm)


def _lstm_cell(_: Rewriting, input: Tensor, hx: Sequence[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
    return next_memory(lstm, input, tuple(hx), *weights)


def _gru_cell(_: Rewriting, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
    return next_memory(gru, input, (hx,), *weights)[0]


def _elman_cell(nonlinearity: str) -> Callable[..., Tensor]:
    def call(_: Rewriting, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
        return next_memory(elman(nonlinearity), input, (hx,), *weights)[0]

    return call


def _rand_like(mode: Rewriting, input: Tensor, **kind: Any) -> Tensor:
    return uniforms(mode.key, mode.stream(), _blank(input.shape, input, kind))


def _randn_like(mode: Rewriting, input: Tensor, **kind: Any) -> Tensor:
    return normals(mode.key, mode.stream(), _blank(input.shape, input, kind))


def _rand(mode: Rewriting, *size: Any, **kind: Any) -> Tensor:
    return uniforms(mode.key, mode.stream(), _blank(_sizes(size, kind), None, kind, mode.key.device))


def _randn(mode: Rewriting, *size: Any, **kind: Any) -> Tensor:
    return normals(mode.key, mode.stream(), _blank(_sizes(size, kind), None, kind, mode.key.device))


def _bernoulli(mode: Rewriting, input: Tensor, p: float | None = None, **_: Any) -> Tensor:
    blank = _blank(input.shape, input, {})
    chance = input if p is None else p
    return (uniforms(mode.key, mode.stream(), blank) < chance).to(input.dtype)


def _sizes(size: tuple[Any, ...], kind: Mapping[str, Any]) -> Sequence[int]:
    given = size or (kind["size"],)
    return given[0] if isinstance(given[0], Sequence) else given


def _blank(
    shape: Sequence[int], like: Tensor | None, kind: Mapping[str, Any], device: torch.device | None = None
) -> Tensor:
    """A tensor without memory of the form that is asked for."""
    dtype = kind.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
    where = kind.get("device") or (device if like is None else like.device)
    return torch.empty((), dtype=dtype, device=where).expand(tuple(shape))


_REWRITTEN: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.dropout1d: _channel_dropout,
    F.dropout2d: _channel_dropout,
    F.dropout3d: _channel_dropout,
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _channel_alpha_dropout,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _inside(F.multi_head_attention_forward),
    weight_normalised: _weight_norm,
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _elman_cell("tanh"),
    torch.rnn_relu_cell: _elman_cell("relu"),
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.rand: _rand,
    torch.randn: _randn,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
}
