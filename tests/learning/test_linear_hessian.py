"""The closed form of a linear model's Hessian against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience.errors import UserError
from consilience.learning.linear_hessian import LinearLayer, block, dense, entries, products, rows_of
from consilience.learning.task import Task
from consilience.problems import Classification, MultiLabel, Regression
from consilience.types import Batch

DTYPE = torch.float64
CASES = {
    "softmax": (Classification(), torch.tensor([0, 2, 1, 1, 0, 2])),
    "weighted": (Classification(class_weights=(0.5, 2.0, 3.0)), torch.tensor([0, 2, 1, 1, 0, 2])),
    "squares": (Regression(), torch.randn(6, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(1))),
    "labels": (MultiLabel(), (torch.arange(18).reshape(6, 3) % 2).to(DTYPE)),
}


@pytest.fixture(params=CASES)
def problem(request):
    return CASES[request.param]


def made(problem, *, bias=True):
    """A model, a task and a batch whose last row is padding, and the Hessian of the batch by torch."""
    kind, targets = problem
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=bias)).to(DTYPE)
    task = Task(module, DTYPE, problem=kind)
    inputs = torch.randn(6, 2, 2, dtype=DTYPE)
    batch = Batch(inputs, targets, torch.tensor([1, 1, 1, 1, 1, 0], dtype=DTYPE), torch.tensor(0))
    model = task.weights_of(module)
    layer = LinearLayer.of(model["params"], "test")

    def loss(vector):
        prediction = torch.func.functional_call(module, layer.params(vector), (inputs,))
        return kind.losses(prediction, targets)[:5].sum()

    vector = layer.vector(model["params"])
    return task, model, batch, layer, torch.func.hessian(loss)(vector)


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_hessian(problem, bias):
    task, model, batch, layer, expected = made(problem, bias=bias)
    rows = rows_of(task, model, batch)
    assert expected.shape == (layer.size, layer.size)
    assert_close(dense(rows), expected, rtol=1e-10, atol=1e-12)


def test_products_blocks_and_entries_are_parts_of_it(problem):
    task, model, batch, layer, expected = made(problem)
    rows = rows_of(task, model, batch)
    columns = torch.randn(layer.size, 4, dtype=DTYPE)
    assert_close(products(rows, columns), expected @ columns, rtol=1e-10, atol=1e-12)
    unit = torch.eye(3, dtype=DTYPE)
    assert_close(block(rows, unit[0], unit[2]), expected[:5, 10:], rtol=1e-10, atol=1e-12)
    first, second = torch.tensor([0, 7, 14, 3]), torch.tensor([0, 12, 1, 3])
    assert_close(entries(rows, first, second), expected[first, second], rtol=1e-10, atol=1e-12)


def test_products_of_many_clients_at_once(problem):
    task, model, batch, layer, expected = made(problem)
    columns = torch.randn(3, layer.size, 2, dtype=DTYPE)

    def product(given):
        return products(rows_of(task, model, batch), given)

    assert_close(torch.func.vmap(product)(columns), expected @ columns, rtol=1e-10, atol=1e-12)


def test_it_is_the_hessian_of_others():
    curvlinops = pytest.importorskip("curvlinops")
    task, model, batch, layer, _ = made(CASES["softmax"])
    module = nn.Linear(4, 3).to(DTYPE)
    module.load_state_dict({name.removeprefix("1."): value for name, value in model["params"].items()})
    data = [(batch.inputs[:5].flatten(1), batch.targets[:5])]
    operator = curvlinops.HessianLinearOperator(
        module, nn.CrossEntropyLoss(reduction="sum"), list(module.parameters()), data
    )
    vector = torch.randn(layer.size, dtype=DTYPE)
    given = layer.params(vector)
    found = operator @ torch.cat([given["1.weight"].flatten(), given["1.bias"]])
    expected = {"1.weight": found[:12].reshape(3, 4), "1.bias": found[12:]}
    product = products(rows_of(task, model, batch), vector[:, None])[:, 0]
    assert_close(product, layer.vector(expected), rtol=1e-8, atol=1e-10)


def test_vectors_and_parameters_are_the_same_numbers():
    params = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([10.0, 20.0])}
    layer = LinearLayer.of(params, "test")
    assert layer.vector(params).tolist() == [0, 1, 2, 10, 3, 4, 5, 20]
    assert_close(layer.params(layer.vector(params)), params, rtol=0, atol=0)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)),
    ],
    ids=["mlp", "cnn", "normalised"],
)
def test_other_models_are_refused(module):
    params = dict(module.named_parameters())
    with pytest.raises(UserError, match="fednl: exact Hessians are there for models of one linear layer"):
        LinearLayer.of(params, "fednl")


def test_the_memory_that_another_model_would_need_is_told():
    module = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    with pytest.raises(UserError, match=r"199,210 parameters .* Hessian would take 159 GB"):
        LinearLayer.of(dict(module.named_parameters()), "fednl")


def test_a_layer_that_is_not_the_last_is_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).to(DTYPE)
    task = Task(module, DTYPE)
    batch = Batch(torch.randn(2, 4, dtype=DTYPE), torch.tensor([0, 1]), torch.ones(2), torch.tensor(0))
    with pytest.raises(UserError, match="outputs are those of one linear layer"):
        rows_of(task, task.weights_of(module), batch)
