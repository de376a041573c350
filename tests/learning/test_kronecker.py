"""Kronecker factors against brute force: plain autograd, one row at a time, on the plain module."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.errors import UserError
from consilience.learning import kronecker
from consilience.learning.curvature import closed_form_squares
from consilience.learning.kronecker import INPUTS, OUTPUTS
from consilience.learning.task import Task
from consilience.types import Batch

WEIGHT = torch.tensor([1.0, 0.0, 0.3, 1.0, 2.0], dtype=torch.float64)  # padding and fractions too


class PerPlace(nn.Module):
    """A linear layer at every place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.last = nn.Linear(3, 4), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.place(inputs.reshape(-1, 2, 3))).flatten(1))


class Twice(nn.Module):
    """One layer used twice, and another."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.twice(torch.tanh(self.twice(inputs)))))


def convolutional() -> nn.Module:
    first = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    return nn.Sequential(
        first, nn.Tanh(), nn.Conv2d(3, 4, (2, 1), bias=False), nn.Flatten(), nn.Linear(24, 3)
    )


MODULES = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)), (6,)),
    "bare": (lambda: nn.Linear(6, 3), (6,)),
    "convolutional": (convolutional, (2, 5, 6)),
    "places": (PerPlace, (6,)),
}


def made(name):
    build, shape = MODULES[name]
    module = build().double()
    batch = Batch(torch.randn(5, *shape, dtype=torch.float64), torch.arange(5) % 3, WEIGHT, torch.tensor(0))
    task = Task(module, torch.float64)
    return module, task, task.weights_of(module), batch


def brute_force(module, batch, targets_of):
    """A and B of all layers, row by row; `targets_of` lists a row's targets and their chances."""
    layers = {name: one for name, one in module.named_modules() if isinstance(one, nn.Linear | nn.Conv2d)}
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(layer):
        def hook(_, given, output):
            output.retain_grad()
            seen[layer] = given[0], output

        return hook

    for layer, one in layers.items():
        one.register_forward_hook(keep(layer))
    inputs, outputs = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    for row, weight in enumerate(batch.weight):
        prediction = module(batch.inputs[row : row + 1]).detach()
        for number, (target, chance) in enumerate(targets_of(batch, row, prediction)):
            F.cross_entropy(module(batch.inputs[row : row + 1]), torch.tensor([target])).backward()
            for layer, one in layers.items():
                given, output = seen[layer]
                if isinstance(one, nn.Conv2d):
                    places = F.unfold(given, one.kernel_size, 1, one.padding, one.stride)[0].T
                    slopes = output.grad[0].flatten(1).T
                else:
                    places, slopes = (
                        given.reshape(-1, given.shape[-1]),
                        output.grad.reshape(-1, output.shape[-1]),
                    )
                if one.bias is not None:
                    places = torch.cat((places, torch.ones(len(places), 1).double()), 1)
                if number == 0:
                    inputs[layer] = inputs[layer] + weight * (places.T @ places).detach()
                outputs[layer] = outputs[layer] + weight * chance * slopes.T @ slopes / len(slopes)
    return inputs, outputs


def given_label(batch, row, prediction):
    return [(int(batch.targets[row]), 1.0)]


def every_label(batch, row, prediction):
    return list(enumerate(prediction.softmax(-1)[0]))


@pytest.mark.parametrize(
    ("kind", "targets_of"),
    [("per_sample_mean", given_label), ("true_fisher", every_label), ("ggn", every_label)],
)
@pytest.mark.parametrize("name", MODULES)
def test_factors_are_those_of_single_rows(name, kind, targets_of):
    module, task, model, batch = made(name)
    weights = kronecker.factored(task, model["params"], "all")
    found = kronecker.contribution(task, weights, kind, batch, model)
    inputs, outputs = brute_force(module, batch, targets_of)
    assert len(weights) == len(inputs)
    for weight, layer in zip(weights, inputs, strict=True):
        assert_close(found[INPUTS][weight], inputs[layer], rtol=1e-10, atol=1e-12)
        assert_close(found[OUTPUTS][weight], outputs[layer], rtol=1e-10, atol=1e-12)


def test_of_one_row_of_a_dense_layer_the_diagonal_is_the_squared_gradient():
    _, task, model, batch = made("dense")
    row = Batch(batch.inputs[:1], batch.targets[:1], torch.ones(1).double(), batch.key)
    weights = kronecker.factored(task, model["params"], "all")
    factors = kronecker.contribution(task, weights, "per_sample_mean", row, model)
    modules = dict(task.skeleton.named_modules())
    for name in weights:
        layer = name.removesuffix(".weight")
        squares = closed_form_squares(task, model, row, {layer: modules[layer]}, task.loss, row.weight)
        diagonal = torch.outer(factors[OUTPUTS][name].diagonal(), factors[INPUTS][name].diagonal())
        assert_close(diagonal, kronecker.matrix(squares, name), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("front", [0, 1])
def test_a_layer_is_one_matrix_and_back(name, front):
    _, task, model, _ = made(name)
    params = model["params"]
    for weight in kronecker.factored(task, params, "all"):
        stacked = {part: torch.stack((value, 2 * value)) for part, value in params.items()}
        whole = kronecker.matrix(stacked, weight, 1)[1] / 2 if front else kronecker.matrix(params, weight)
        parts = kronecker.divided(whole, weight, params)
        assert parts.keys() == {weight, kronecker.bias_of(weight)} & params.keys()
        assert_close(parts, {part: params[part] for part in parts}, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_triangle_is_half_a_symmetric_matrix(size):
    some = torch.randn(3, size, size)
    symmetric = some + some.mT
    triangle = kronecker.packed(symmetric)
    assert triangle.shape == (3, size * (size + 1) // 2)
    assert torch.equal(kronecker.unpacked(triangle, size), symmetric)


def test_layers_without_factors_are_left_out():
    module = nn.Sequential(
        nn.Conv2d(4, 4, 1, groups=2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.Linear(8, 3)
    )
    task = Task(module)
    params = task.weights_of(module)["params"]
    assert kronecker.factored(task, params, "all") == ("2.weight", "4.weight")
    assert kronecker.factored(task, params, "output") == ("4.weight",)
    shared = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    shared[1].weight = shared[0].weight
    task = Task(shared)
    assert kronecker.factored(task, task.weights_of(shared)["params"], "all") == ("2.weight",)


def test_a_model_without_any_is_refused_in_a_line():
    module = nn.Sequential(nn.Embedding(5, 3))
    task = Task(module)
    with pytest.raises(UserError, match="need a dense or convolutional layer"):
        kronecker.factored(task, task.weights_of(module)["params"], "all")


def test_a_layer_that_runs_twice_is_refused_in_a_line():
    module = Twice().double()
    task = Task(module, torch.float64)
    model = task.weights_of(module)
    batch = Batch(torch.randn(5, 6).double(), torch.arange(5) % 3, WEIGHT, torch.tensor(0))
    weights = kronecker.factored(task, model["params"], "all")
    with pytest.raises(UserError, match="run once for every row; twice does not"):
        kronecker.contribution(task, weights, "per_sample_mean", batch, model)
