"""Recurrent layers step by step give what torch's own kernels give."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close

from consilience.learning.recurrent import unrolled
from consilience.learning.rewriting import Rewriting

DTYPE = torch.float64

LAYERS = {
    "lstm": lambda **options: nn.LSTM(4, 3, **options),
    "projected lstm": lambda **options: nn.LSTM(4, 3, proj_size=2, **options),
    "gru": lambda **options: nn.GRU(4, 3, **options),
    "tanh": lambda **options: nn.RNN(4, 3, **options),
    "relu": lambda **options: nn.RNN(4, 3, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "deep": {"num_layers": 3, "bias": False},
    "both ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


def flat(found: object) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [leaf for part in found for leaf in flat(part)]


@pytest.mark.parametrize("form", ["batch", "single", "started", "packed"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_and_gradients_are_those_of_torch(kind, options, form):
    torch.manual_seed(0)
    plain = LAYERS[kind](**OPTIONS[options]).to(DTYPE)
    ours = unrolled(copy.deepcopy(plain))
    assert type(ours) is not type(plain)
    inputs = torch.randn(5, 6, 4, dtype=DTYPE)
    given: tuple[object, ...] = (inputs[0] if form == "single" else inputs,)
    if form == "packed":
        lengths = [6, 5, 3, 3, 1] if plain.batch_first else [5, 4, 4, 2, 1, 1]
        given = (pack_padded_sequence(inputs, lengths, batch_first=plain.batch_first),)
    if form == "started":
        _, last = plain(inputs)
        given = (
            inputs,
            torch.randn_like(last) if isinstance(last, torch.Tensor) else tuple(map(torch.ones_like, last)),
        )
    expected, found = (
        flat([layer(*given)[0][0] if form == "packed" else layer(*given)]) for layer in (plain, ours)
    )
    assert_close(found, expected, rtol=1e-10, atol=1e-12)
    sums = (sum(value.square().sum() for value in values) for values in (expected, found))
    gradients = [
        torch.autograd.grad(one, list(m.parameters())) for one, m in zip(sums, (plain, ours), strict=True)
    ]
    assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-11)


def test_weights_are_those_of_the_call():
    ours = unrolled(nn.GRU(4, 3).to(DTYPE))
    weights = {name: torch.randn_like(value) for name, value in ours.named_parameters()}
    inputs = torch.randn(5, 6, 4, dtype=DTYPE)
    plain = nn.GRU(4, 3).to(DTYPE)
    plain.load_state_dict(weights)
    for given in (inputs, pack_padded_sequence(inputs, [5, 4, 4, 2, 1, 1])):
        found = torch.func.functional_call(ours, weights, (given,))[1]
        assert_close(found, plain(given)[1], rtol=1e-10, atol=1e-12)


def test_dropout_between_layers_follows_the_key_and_leaves_the_last_layer_alone():
    layer = unrolled(nn.LSTM(4, 3, 2, dropout=0.5)).train()
    inputs = torch.randn(5, 6, 4)

    def outputs(key: int) -> torch.Tensor:
        with Rewriting(torch.tensor(key)):
            return layer(inputs)[0]

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))
    assert (outputs(1) != 0).all()


@pytest.mark.parametrize(
    "kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_those_of_torch(kind, bias):
    cell, inputs = kind(4, 3, bias=bias).to(DTYPE), torch.randn(2, 5, 4, dtype=DTYPE)
    expected = cell(inputs[1], cell(inputs[0]))
    with Rewriting(torch.tensor(0)):
        assert_close(cell(inputs[1], cell(inputs[0])), expected, rtol=1e-10, atol=1e-12)


def test_other_layers_stay():
    assert unrolled(nn.Linear(3, 3)) is None
