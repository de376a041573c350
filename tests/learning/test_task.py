"""A task computes what its module computes, from weights that are arguments."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.learning.task import Task, mean_loss
from consilience.models import Classifier
from consilience.types import Batch

DTYPE = torch.float64


def batch(inputs: torch.Tensor, padding: int = 0) -> Batch:
    weight = torch.ones(len(inputs), dtype=DTYPE)
    weight[len(inputs) - padding :] = 0
    return Batch(inputs, torch.arange(len(inputs)) % 3, weight, torch.tensor(11))


def images() -> torch.Tensor:
    return torch.linspace(-2, 3, 5 * 72, dtype=DTYPE).sin().reshape(5, 2, 6, 6)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "batchnorm"])
def test_forward_equals_the_plain_module(network, name, training):
    plain = network(name).to(DTYPE)
    task = Task(plain, DTYPE)
    model, rows = task.weights_of(plain), batch(images())
    held = copy.deepcopy((model, rows))
    output = task.forward(model, rows, training=training)
    assert_close((model, tuple(rows)), (held[0], tuple(held[1])), rtol=0, atol=0)
    assert_close(output.prediction, plain.train(training)(rows.inputs), rtol=1e-12, atol=1e-12)
    assert_close(output.buffers, dict(plain.named_buffers()), rtol=1e-12, atol=1e-12)
    assert torch.equal(output.features, output.prediction)  # a module without a head has no other features


def test_training_again_moves_the_buffers_on(network):
    plain = network("batchnorm").to(DTYPE).train()
    task = Task(plain, DTYPE)
    model = task.weights_of(plain)
    for _ in range(3):
        model = {**model, "buffers": task.forward(model, batch(images()), training=True).buffers}
        plain(images())
    assert model["buffers"]["1.num_batches_tracked"] == 3
    assert_close(model["buffers"], dict(plain.named_buffers()), rtol=1e-12, atol=1e-12)


def test_dropout_follows_the_key_of_the_batch(network):
    plain = network("dropout")
    task = Task(plain, DTYPE)
    model, rows = task.weights_of(plain), batch(images())
    other = rows._replace(key=torch.tensor(12))
    first = task.forward(model, rows, training=True).prediction
    assert torch.equal(task.forward(model, rows, training=True).prediction, first)
    assert not torch.equal(task.forward(model, other, training=True).prediction, first)
    evaluated = task.forward(model, other, training=False).prediction
    assert_close(evaluated, plain.to(DTYPE).eval()(rows.inputs), rtol=1e-12, atol=1e-12)


class DropTwice(nn.Module):
    """One dropout layer, used twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs):
        return torch.stack([self.drop(inputs), self.drop(inputs)], 1)


class DropInTwoPlaces(nn.Module):
    """One dropout layer under two names, each used once in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.other = nn.Dropout(0.5)

    def forward(self, inputs):
        return torch.stack([self.one(inputs), self.other(inputs)], 1)


@pytest.mark.parametrize("kind", [DropTwice, DropInTwoPlaces])
def test_a_dropout_layer_used_twice_draws_two_masks_in_every_pass_the_same(kind):
    task, model, inputs = Task(kind(), DTYPE), {"params": {}, "buffers": {}}, torch.ones(20, 50, dtype=DTYPE)

    def masks(key: torch.Tensor) -> torch.Tensor:
        return task.forward(model, batch(inputs)._replace(key=key), training=True).prediction

    found = masks(torch.tensor(11))
    agreement = (found[:, 0] == found[:, 1]).double().mean().item()
    assert agreement == pytest.approx(0.5, abs=0.08)  # 5 standard deviations: unrelated
    task.forward(model, batch(inputs), training=False)
    assert torch.equal(masks(torch.tensor(11)), found)
    keys = torch.tensor([11, 12, 11])
    lanes = torch.func.vmap(masks)(keys)
    assert torch.equal(lanes, torch.stack([masks(key) for key in keys]))
    assert not torch.equal(lanes[0], lanes[1])


def test_a_head_gives_features():
    plain = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU()), nn.Linear(4, 3)).to(DTYPE)
    task = Task(plain, DTYPE)
    output = task.forward(task.weights_of(plain), batch(images()), training=True)
    assert_close(output.features, plain.body(images()), rtol=1e-12, atol=1e-12)
    assert_close(output.prediction, plain(images()), rtol=1e-12, atol=1e-12)
    assert task.has_features
    assert not Task(plain.body).has_features


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mlp", "batchnorm", "dropout"])
def test_weights_of_round_trip(network, name, dtype):
    plain = network(name)
    task = Task(plain, dtype)
    model = task.weights_of(plain)
    assert list(model["params"]) == [path for path, _ in plain.named_parameters()]
    assert list(model["buffers"]) == [path for path, _ in plain.named_buffers()]
    assert all(value.dtype == dtype for value in model["params"].values())
    assert not any(value.requires_grad for value in model["params"].values())
    fresh = copy.deepcopy(plain).to(dtype)
    for value in fresh.state_dict().values():
        value.zero_()
    fresh.load_state_dict(model["params"] | model["buffers"])
    assert_close(task.weights_of(fresh), model, rtol=0, atol=0)
    assert next(plain.parameters()).dtype == torch.float32
    before = next(plain.parameters()).clone()
    next(iter(model["params"].values())).zero_()
    assert torch.equal(next(plain.parameters()), before)


@pytest.mark.parametrize("padding", [0, 2])
def test_score_counts_the_rows_that_count(network, padding):
    plain = network("mlp").to(DTYPE)
    task = Task(plain, DTYPE)
    rows = batch(images(), padding)
    score = task.tally(task.weights_of(plain), rows)
    kept = len(rows.inputs) - padding
    logits = plain(rows.inputs)[:kept]
    assert score["correct"] == (logits.argmax(1) == rows.targets[:kept]).sum()
    assert_close(score["loss"], F.cross_entropy(logits, rows.targets[:kept], reduction="sum").double())


def test_mean_loss_ignores_padding_whatever_it_holds():
    losses = torch.tensor([1.0, 3.0, torch.inf], requires_grad=True)
    loss = mean_loss(losses, torch.tensor([1.0, 1.0, 0.0]))
    loss.backward()
    assert loss.item() == 2
    assert losses.grad.tolist() == [0.5, 0.5, 0.0]


class Repeated(nn.Module):
    """A layer used twice, and one used once."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.once = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.once(torch.tanh(self.twice(torch.tanh(self.twice(inputs)))))


def test_a_trace_lists_layers_that_run_once(network):
    assert Task(network("cnn")).trace(torch.Size((7, 2, 6, 6))).layers == {"0": (7, 3, 3, 3), "3": (7, 3)}
    assert Task(Repeated()).trace(torch.Size((5, 4))).layers == {"once": (5, 3)}


class HeadOnly(nn.Module):
    """Has a head, but no method `features`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(torch.relu(self.body(inputs)))


class OwnForward(nn.Module):
    """Has layers called `features` and `head`, and something of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(torch.relu(self.features(inputs)))


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight

    def forward(self, inputs):
        return self.two(torch.tanh(self.one(inputs)))


class OwnBuffers(nn.Module):
    """Has buffers with the names that dropout and batch-normalisation layers use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("key", torch.full((3,), 2.0))
        self.register_buffer("rows", torch.full((3,), 3.0))

    def forward(self, inputs):
        return self.norm(self.layer(inputs)) * self.key + self.rows


class Counting(nn.Module):
    """Changes its buffers in place while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(3))

    def forward(self, inputs):
        outputs = self.layer(inputs)
        if self.training:
            self.count += 1
            self.largest.copy_(torch.maximum(self.largest, outputs.detach().amax(0)))
        return outputs * self.count


def in_two_places() -> nn.Module:
    """A linear and a batch-normalisation layer, each under two names."""
    linear, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    return nn.Sequential(linear, norm, nn.Tanh(), linear, norm)


MODULES = [Repeated, HeadOnly, OwnForward, Tied, OwnBuffers, Counting, in_two_places]


@pytest.mark.parametrize("kind", MODULES)
def test_any_module_works(kind):
    plain = kind().to(DTYPE)
    task = Task(plain, DTYPE)
    assert not task.has_features
    rows = batch(torch.randn(5, 4, dtype=DTYPE))
    for training in (False, True, False, True):
        model = task.weights_of(plain)
        assert list(model["buffers"]) == [name for name, _ in plain.named_buffers()]
        held = copy.deepcopy(model)
        output = task.forward(model, rows, training=training)
        assert_close(model, held, rtol=0, atol=0)
        assert_close(output.prediction, plain.train(training)(rows.inputs), rtol=1e-12, atol=1e-12)
        assert_close(output.buffers, dict(plain.named_buffers()), rtol=1e-12, atol=1e-12)
        assert torch.equal(output.features, output.prediction)


@pytest.mark.parametrize("kind", MODULES)
def test_a_task_holds_no_weights(kind):
    plain = kind().to(DTYPE)
    task = Task(plain, DTYPE)
    model = task.weights_of(plain)
    assert all(value.is_meta for value in task.skeleton.state_dict().values())
    task.forward(model, batch(torch.randn(5, 4, dtype=DTYPE)), training=False)
    assert all(value.is_meta for value in task.skeleton.state_dict().values())
    task.trace(torch.Size((7, 4)))  # runs on the meta device, after a pass too
