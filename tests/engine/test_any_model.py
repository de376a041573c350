"""Whatever a model is made of: clients side by side compute what they compute one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import consilience as cs
from consilience.data.dataset import Dataset

STEPS, FEATURES, CLASSES = 3, 4, 3


class Recurrent(nn.Module):
    """A recurrent layer whose last output is classified."""

    def __init__(self, layer: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        return self.head(outputs[:, -1] if self.layer.batch_first else outputs[-1])


class Transformer(nn.Module):
    """Torch's own encoder, and the mean over all places."""

    def __init__(self, dropout: float, *, causal: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.causal, self.batch_first = causal, batch_first
        self.embed = nn.Linear(FEATURES, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(STEPS, dtype=x.dtype) if self.causal else None
        x = self.embed(x)
        if not self.batch_first:
            return self.head(self.encoder(x.transpose(0, 1), mask).mean(0))
        return self.head(self.encoder(x, mask).mean(1))


class Functional(nn.Module):
    """Dropout and noise that are no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(STEPS * FEATURES, 9), nn.Linear(9, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x, 0.2, self.training)
        hidden = torch.selu(self.inner(x.flatten(1)))
        if self.training:
            hidden = hidden + 0.1 * torch.randn_like(hidden)
        hidden = F.alpha_dropout(hidden, 0.3, self.training)
        return self.head(hidden * torch.bernoulli(torch.full_like(hidden, 0.9)) if self.training else hidden)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.two.weight = self.one.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))).mean(1))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(STEPS * FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))
    module[1].requires_grad_(False)
    return module


def normed() -> nn.Module:
    inner = parametrizations.weight_norm(nn.Linear(STEPS * FEATURES, 6))
    return nn.Sequential(nn.Flatten(), inner, nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, CLASSES))


class Cells(nn.Module):
    """A cell of torch's in a loop."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(FEATURES, 5), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for now in x.unbind(1):
            state = self.cell(now, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


BATCHABLE: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM(FEATURES, 6, 2, batch_first=True, dropout=0.3), 6),
    "lstm, both ways, projected": lambda: Recurrent(
        nn.LSTM(FEATURES, 6, 2, bidirectional=True, proj_size=3), 6
    ),
    "gru": lambda: Recurrent(nn.GRU(FEATURES, 5, 2, dropout=0.4), 5),
    "rnn": lambda: Recurrent(nn.RNN(FEATURES, 5, nonlinearity="relu", batch_first=True, bias=False), 5),
    "lstm cell": lambda: Cells(nn.LSTMCell),
    "gru cell": lambda: Cells(nn.GRUCell),
    "transformer": lambda: Transformer(0.0),
    "transformer, dropout": lambda: Transformer(0.2),
    "transformer, dropout, batch second": lambda: Transformer(0.2, batch_first=False),
    "transformer, causal": lambda: Transformer(0.1, causal=True),
    "functional": Functional,
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(CLASSES)),
    "tied": Tied,
    "frozen": frozen,
    "normed": normed,
}


@pytest.fixture(scope="session")
def sequences() -> Dataset:
    """Series of numbers of three kinds; their number leaves partial batches."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(35) % CLASSES
    centres = torch.randn(CLASSES, STEPS, FEATURES, generator=random)
    inputs = centres[targets] + torch.randn(35, STEPS, FEATURES, generator=random)
    return Dataset.from_arrays("sequences", inputs[:26], targets[:26], inputs[26:], targets[26:])


def train(data: Dataset, model: Any, method: Any = "fedavg", **changes: Any) -> cs.Result:
    settings = {
        "data": {"name": "sequences", "own": data, "normalize": "none"},
        "clients": 3,
        "rounds": 2,
        "local": {"epochs": 1, "batch_size": 4},
        "solver": {"name": "sgd", "lr": 0.1},
        "dtype": "float64",
        "evaluate": {"clients": False, "every": 2},
    }
    return cs.run(method, model=model, **{**settings, **changes})


def params(result: cs.Result) -> dict[str, torch.Tensor]:
    return next(iter(result.models.values()))["params"]


@pytest.mark.parametrize("name", BATCHABLE)
def test_side_by_side_is_one_after_the_other(name, sequences, caplog):
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(sequences, BATCHABLE[name])
    assert not caplog.records, caplog.text
    torch.manual_seed(1)  # which nothing depends on
    assert train(sequences, BATCHABLE[name]).digest == found.digest
    expected = train(sequences, BATCHABLE[name], executor="sequential")
    assert_close(params(found), params(expected), rtol=1e-9, atol=1e-10)
    assert found.records[-1]["train_loss"] == pytest.approx(expected.records[-1]["train_loss"], rel=1e-9)
    assert found.records[0]["train_loss"] != found.records[1]["train_loss"]


class Choosing(nn.Module):
    """A model that looks at its numbers to decide what to do, and draws what only a generator can draw."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(STEPS * FEATURES, 6), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x.flatten(1))
        hidden = hidden.relu() if hidden.detach().mean() > 0 else hidden.tanh()
        if self.training:
            hidden = hidden * F.gumbel_softmax(hidden)
        return self.head(F.dropout(hidden, 0.2, self.training))


@pytest.mark.parametrize("method", ["fedavg", "hwa", {"name": "hwa", "kind": "batch_sum", "layers": "all"}])
def test_what_cannot_be_stacked_runs_one_after_the_other_and_says_so_once(method, sequences, caplog):
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(sequences, Choosing, method)
    (line,) = caplog.records
    text = line.getMessage()
    assert "one after the other" in text
    assert "about as slow as executor: sequential" in text
    assert "\n" not in text
    assert train(sequences, Choosing, method).digest == found.digest
    expected = train(sequences, Choosing, method, executor="sequential")
    assert_close(params(found), params(expected), rtol=1e-9, atol=1e-10)


class Unstackable(torch.autograd.Function):
    """An operation for which `vmap` has no rule."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to save."""

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad


class WithoutRule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(STEPS * FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Unstackable.apply(self.head(x.flatten(1)))


def test_a_layer_without_a_rule_runs_one_after_the_other(sequences, caplog):
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(sequences, WithoutRule)
    (line,) = caplog.records
    assert "slower than side by side" in line.getMessage()
    expected = train(sequences, WithoutRule, executor="sequential")
    assert_close(params(found), params(expected), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["gru", "transformer, dropout", "frozen", "normed", "tied"])
@pytest.mark.parametrize("method", ["hwa", "fedcurv", {"name": "giant", "iterations": 2}])
def test_curvature_of_any_model(name, method, sequences, caplog):
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(sequences, BATCHABLE[name], method, rounds=1)
    assert not caplog.records, caplog.text
    expected = train(sequences, BATCHABLE[name], method, rounds=1, executor="sequential")
    assert_close(params(found), params(expected), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("executor", ["sequential", "auto"])
@pytest.mark.parametrize("model", [Functional, Choosing])
def test_equal_runs_give_equal_digests_and_leave_the_global_generator_alone(model, executor, sequences):
    digests = set()
    for seed in range(3):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        digests.add(train(sequences, model, executor=executor, rounds=1).digest)
        assert torch.equal(torch.get_rng_state(), state)
    assert len(digests) == 1
