"""What is relied on where functions of torch are answered by others; and the weights of recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_sequence
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

from consilience import torch_internals as internals


class Seen(TorchFunctionMode):
    """Notes which functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


def test_a_mode_sees_the_calls_inside_attention():
    layer, x = nn.MultiheadAttention(4, 2, dropout=0.5), torch.randn(3, 2, 4)
    given = {
        "query": x,
        "key": x,
        "value": x,
        "embed_dim_to_check": 4,
        "num_heads": 2,
        "in_proj_weight": layer.in_proj_weight,
        "in_proj_bias": layer.in_proj_bias,
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": layer.out_proj.weight,
        "out_proj_bias": layer.out_proj.bias,
        "need_weights": False,
    }
    expected, _ = F.multi_head_attention_forward(**given)
    with Seen() as seen:
        found, _ = internals.looking_inside(F.multi_head_attention_forward)(**given)
    assert_close(found, expected)
    changed = "torch changed: F.multi_head_attention_forward"
    assert F.multi_head_attention_forward not in seen.functions, f"{changed} asks for overrides otherwise"
    assert F.scaled_dot_product_attention in seen.functions, f"{changed} does not call attention"
    with Seen() as seen:
        internals.looking_inside(F.multi_head_attention_forward)(
            **{**given, "need_weights": True, "dropout_p": 0.1}
        )
    assert F.dropout in seen.functions, f"{changed} drops weights by something else than F.dropout"


def test_encoders_take_no_short_cut_while_a_mode_looks():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    with torch.no_grad(), Seen() as seen:
        layer(torch.randn(2, 3, 4))
    assert F.multi_head_attention_forward in seen.functions, (
        "torch changed: a fused kernel in spite of a mode"
    )


def test_recurrent_layers_read_a_list_of_weights():
    layer, sequences = nn.LSTM(2, 3), pack_sequence([torch.randn(4, 2), torch.randn(3, 2)])
    weights = {name: torch.randn_like(value) for name, value in layer.named_parameters()}
    other = nn.LSTM(2, 3)
    other.load_state_dict(weights)

    class Current(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            internals.with_current_weights(self.layer)
            return self.layer(x)[0].data

    named = {f"layer.{name}": value for name, value in weights.items()}
    found = torch.func.functional_call(Current(), named, (sequences,))
    assert_close(
        found, other(sequences)[0].data, msg=lambda text: f"torch changed: weights of nn.LSTM. {text}"
    )


def test_weight_normalisation_is_one_function():
    for dim in (0, 1, None):
        layer = parametrizations.weight_norm(nn.Linear(3, 4), dim=dim)
        with Seen() as seen:
            weight = layer.weight
        assert internals.weight_normalised in seen.functions, (
            "torch changed: weight_norm calls something else"
        )
        lengths, directions = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
        norms = directions.norm() if dim is None else directions.norm(dim=1 - dim, keepdim=True)
        assert_close(weight, lengths * directions / norms)
