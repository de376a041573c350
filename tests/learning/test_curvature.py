"""Curvature against brute force: plain autograd, one row at a time, on the plain module."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from consilience import tree
from consilience.exchange.cohort import LocalWork
from consilience.learning.curvature import Kind, closed_form_squares, per_sample_squares, sum_of_squares
from consilience.learning.task import Task
from consilience.types import Batch

DTYPE = torch.float64
KINDS = get_args(Kind)


def brute_force(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor):
    """`sum_i weight_i g_i^2` for all parameters of a plain module in evaluation mode."""
    named = dict(module.eval().named_parameters())
    total = {name: torch.zeros_like(value) for name, value in named.items()}
    for row in range(len(inputs)):
        loss = F.cross_entropy(module(inputs[row : row + 1]), targets[row : row + 1])
        for name, grad in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            total[name] = total[name] + weight[row] * grad**2
    return {name: value.detach() for name, value in total.items()}


def ready(module: nn.Module) -> nn.Module:
    """In float64, with batch normalisation that does something in evaluation mode."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return module.to(DTYPE)


def some_batch(shape: tuple[int, ...], rows: int = 5, classes: int = 3) -> Batch:
    inputs = torch.randn(rows, *shape, dtype=DTYPE)
    weight = torch.tensor([1.0, 0.0, 0.3, 1.0, 2.0], dtype=DTYPE)[:rows]  # padding and fractions too
    return Batch(inputs, torch.arange(rows) % classes, weight, torch.tensor(0))


class PerPosition(nn.Module):
    """A linear layer at every position: its output has three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.last = nn.Linear(3, 4), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.position(inputs.reshape(-1, 2, 3))).flatten(1))


class Folded(PerPosition):
    """The same with the positions folded into the batch axis."""

    def forward(self, inputs):
        return self.last(torch.tanh(self.position(inputs.reshape(-1, 3))).reshape(len(inputs), -1))


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.twice(torch.tanh(self.twice(inputs)))))


class Scaled(nn.Module):
    """Gives a tuple, as recurrent and attention layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))

    def forward(self, inputs):
        return inputs * self.scale, None


class TupleOutput(nn.Module):
    """A layer with weights whose output is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.last = Scaled(), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.scaled(inputs)[0]))


class Tied(nn.Module):
    """Two layers that each run once and share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight

    def forward(self, inputs):
        return self.two(torch.tanh(self.one(inputs)))


def in_two_places() -> nn.Module:
    """One layer under two names, and one between them that is used once."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), layer)


def after(convolution: nn.Conv2d) -> nn.Module:
    """A convolution of [2, 6, 5] images with a classifier behind it."""
    width = convolution(torch.zeros(1, 2, 6, 5)).numel()
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3))


CLOSED_FORM = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 3)), (6,)),
    "linear without bias": (
        lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)),
        (6,),
    ),
    "convolution": (lambda: after(nn.Conv2d(2, 3, 3)), (2, 6, 5)),
    "stride": (lambda: after(nn.Conv2d(2, 3, 3, stride=2)), (2, 6, 5)),
    "padding": (lambda: after(nn.Conv2d(2, 3, 3, padding=1)), (2, 6, 5)),
    "no bias, all unequal": (lambda: after(nn.Conv2d(2, 3, (3, 2), (1, 2), (2, 1), bias=False)), (2, 6, 5)),
}

FALLBACK = {
    "root": (lambda: nn.Linear(6, 3), (6,)),
    "per position": (PerPosition, (6,)),
    "used twice": (Twice, (6,)),
    "weight of two layers": (Tied, (6,)),
    "layer in two places": (in_two_places, (6,)),
    "groups": (lambda: after(nn.Conv2d(2, 4, 3, groups=2)), (2, 6, 5)),
    "dilation": (lambda: after(nn.Conv2d(2, 3, 2, dilation=2)), (2, 6, 5)),
    "same padding": (lambda: after(nn.Conv2d(2, 3, 3, padding="same")), (2, 6, 5)),
    "circular padding": (lambda: after(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), (2, 6, 5)),
}


def check_squares(module: nn.Module, shape: tuple[int, ...], rows: int = 5) -> None:
    module, batch = ready(module), some_batch(shape, rows)
    task = Task(module, DTYPE)
    model = task.weights_of(module)
    names = tuple(model["params"])
    expected = brute_force(module, batch.inputs, batch.targets, batch.weight)
    for function in (sum_of_squares, per_sample_squares):
        found = function(task, model, batch, names, task.loss, batch.weight)
        assert list(found) == list(names)
        assert_close(found, expected, rtol=1e-10, atol=1e-14)
    # half a layer, and in another order
    some = tuple(reversed(names))[: len(names) // 2 + 1]
    found = sum_of_squares(task, model, batch, some, task.loss, batch.weight)
    assert_close(found, {name: expected[name] for name in some}, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("case", CLOSED_FORM)
def test_closed_form_equals_vmap_of_grad(case):
    build, shape = CLOSED_FORM[case]
    module, batch = ready(build()), some_batch(shape)
    task = Task(module, DTYPE)
    model = task.weights_of(module)
    layers = {name: m for name, m in task.skeleton.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    found = closed_form_squares(task, model, batch, layers, task.loss, batch.weight)
    names = tuple(model["params"])
    assert_close(
        found, per_sample_squares(task, model, batch, names, task.loss, batch.weight), rtol=1e-10, atol=0
    )
    check_squares(module, shape)


@pytest.mark.parametrize("case", FALLBACK)
def test_where_the_closed_form_does_not_hold_squares_are_still_right(case):
    build, shape = FALLBACK[case]
    check_squares(build(), shape)


@pytest.mark.parametrize("name", ["mlp", "cnn", "batchnorm", "dropout"])
def test_squares_of_whole_networks(network, name):
    check_squares(network(name), (2, 6, 6))


@pytest.mark.parametrize("rows", [1, 5])
def test_positions_folded_into_the_batch_axis(rows):
    check_squares(Folded(), (6,), rows)


@pytest.mark.parametrize("build", [TupleOutput, lambda: nn.Sequential(weight_norm(nn.Linear(6, 3)))])
def test_layers_that_do_not_map_a_tensor_to_a_tensor(build):
    check_squares(build(), (6,))


def diagonals(place, kind: str, executor=None) -> dict[str, torch.Tensor]:
    """The diagonals of all clients, stacked."""
    executor = executor or place.sequential()
    outcome = place.run(executor, lambda client, down: {"d": client.squared_gradients(down, kind=kind)})
    return outcome.uploads["d"]


def client_rows(place, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    shard = torch.from_numpy(place.cohort.jobs[client].shard)
    batch = place.pool.batch(shard, torch.ones(len(shard), dtype=DTYPE), torch.tensor(0))
    return batch.inputs, batch.targets


def test_kinds_are_scaled_as_they_say(federation):
    place = federation("cnn", work=LocalWork(1, None, 4))
    samples = torch.tensor(place.cohort.samples, dtype=DTYPE)
    batches = torch.ceil(samples / 4)
    for kind, other, count in [
        ("per_sample_sum", "per_sample_mean", samples),
        ("batch_sum", "batch_mean", batches),
    ]:
        total, average = diagonals(place, kind), diagonals(place, other)
        for name, value in total.items():
            shaped = count.reshape(-1, *[1] * (value.ndim - 1))
            assert_close(value / shaped, average[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("batch_size", "one", "other"), [(1, "batch_sum", "per_sample_sum"), (100, "batch_sum", "full_grad_sq")]
)
def test_kinds_agree_on_batches_of_one_and_of_all(federation, batch_size, one, other):
    place = federation("cnn", work=LocalWork(1, None, batch_size))
    assert_close(diagonals(place, one), diagonals(place, other), rtol=1e-10, atol=1e-16)


@pytest.mark.parametrize("kind", KINDS)
def test_diagonals_are_not_negative_and_have_all_shapes(federation, kind):
    place = federation("batchnorm")
    found = diagonals(place, kind)
    assert {name: value[0].shape for name, value in found.items()} == {
        name: value.shape for name, value in place.start["params"].items()
    }
    assert all((value >= 0).all() and (value > 0).any() for value in found.values())


@pytest.mark.parametrize(
    ("kind", "factor"), [("per_sample_sum", 2), ("per_sample_mean", 1), ("full_grad_sq", 1)]
)
def test_a_data_set_twice(federation, kind, factor):
    inputs = torch.randn(8, 2, 6, 6, dtype=DTYPE)
    once = federation("mlp", sizes=(8,), inputs=inputs)
    (job,) = once.cohort.jobs
    doubled = replace(once.cohort, jobs=(job._replace(shard=job.shard.repeat(2)),), _plans={})
    twice = diagonals(replace(once, cohort=doubled), kind)
    assert_close(twice, tree.scale(factor, diagonals(once, kind)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_parameters_that_only_see_zeros_get_exactly_zero(federation, name, kind):
    inputs = torch.randn(8, 2, 6, 6, dtype=DTYPE)
    inputs[:, 1] = 0  # the second channel
    found = diagonals(federation(name, sizes=(5, 3), inputs=inputs), kind)
    first = found["1.weight"].reshape(2, 5, 2, 36) if name == "mlp" else found["0.weight"]
    assert (first[:, :, 1] == 0).all()
    assert (first[:, :, 0] > 0).any()


@pytest.mark.parametrize("name", ["mlp", "batchnorm"])
def test_true_fisher_and_gauss_newton_equal_their_definitions(federation, network, name):
    place, module = federation(name, sizes=(6, 2)), network(name).to(DTYPE).eval()
    fisher, gauss_newton = diagonals(place, "true_fisher"), diagonals(place, "ggn")
    assert_close(fisher, gauss_newton, rtol=1e-10, atol=1e-16)
    for client in range(2):
        inputs, targets = client_rows(place, client)
        chances = module(inputs).softmax(1).detach()
        labels = [
            brute_force(module, inputs, torch.full_like(targets, label), chances[:, label] / len(inputs))
            for label in range(3)
        ]
        expected = tree.add(tree.add(*labels[:2]), labels[2])
        assert_close(tree.index({"d": fisher}, client)["d"], expected, rtol=1e-10, atol=1e-16)


def test_gauss_newton_equals_its_matrix(federation, network):
    place, module = federation("mlp", sizes=(4,)), network("mlp").to(DTYPE)
    inputs, _ = client_rows(place, 0)
    jacobian = torch.func.jacrev(lambda params: torch.func.functional_call(module, params, (inputs,)))
    chances = module(inputs).softmax(1).detach()
    hessian = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None, :]
    found = diagonals(place, "ggn")
    for name, rows in jacobian(place.start["params"]).items():
        diagonal = torch.einsum("ncp,ncd,ndp->p", rows.flatten(2), hessian, rows.flatten(2)) / 4
        assert_close(found[name][0].flatten(), diagonal.detach(), rtol=1e-10, atol=1e-16)


def mean_loss_of(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor):
    return lambda params: F.cross_entropy(torch.func.functional_call(module, params, (inputs,)), targets)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_grad_equals_autograd_on_the_pooled_data(federation, network, name):
    place, module = federation(name), network(name).to(DTYPE)
    params = place.start["params"]
    found = place.run(place.sequential(), lambda client, down: {"g": client.grad(down).params}).uploads["g"]
    for client in range(len(place.cohort.jobs)):
        expected = torch.func.grad(mean_loss_of(module, *client_rows(place, client)))(params)
        assert_close(tree.index({"g": found}, client)["g"], expected, rtol=1e-10, atol=1e-14)
    shares = torch.tensor(place.cohort.samples, dtype=DTYPE)
    pooled = [torch.cat(column) for column in zip(*(client_rows(place, c) for c in range(5)), strict=True)]
    mean = {name: torch.tensordot(shares / shares.sum(), value, 1) for name, value in found.items()}
    assert_close(mean, torch.func.grad(mean_loss_of(module, *pooled))(params), rtol=1e-10, atol=1e-14)


def test_hvp_equals_rows_of_the_hessian(federation):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).to(DTYPE)
    place = federation(module, sizes=(7, 4), inputs=torch.randn(11, 2, dtype=DTYPE))
    params = place.start["params"]
    names, sizes = list(params), [value.numel() for value in params.values()]

    def unpacked(vector: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = vector.split(sizes)
        return {name: part.reshape(params[name].shape) for name, part in zip(names, parts, strict=True)}

    flat = torch.cat([value.flatten() for value in params.values()])
    vectors = torch.cat([torch.eye(len(flat), dtype=DTYPE), torch.randn(1, len(flat), dtype=DTYPE)])
    for client in range(2):
        loss = mean_loss_of(module, *client_rows(place, client))
        hessian = torch.func.hessian(lambda vector, loss=loss: loss(unpacked(vector)))(flat)
        for vector in vectors:
            own = {"v": {name: value.expand(2, *value.shape) for name, value in unpacked(vector).items()}}
            outcome = place.run(
                place.sequential(), lambda client, down: {"h": client.hvp(down, down["v"])}, own=own
            )
            product = torch.cat([value[client].flatten() for value in outcome.uploads["h"].values()])
            assert_close(product, hessian @ vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn", "batchnorm", "dropout"])
def test_batched_equals_sequential(federation, name):
    place = federation(name)

    def everything(client, down):
        trained = client.train(down).model
        gradient = client.grad(trained)
        squares = {kind: client.squared_gradients(trained, kind=kind) for kind in KINDS}
        return {
            **squares,
            "g": gradient.params,
            "b": gradient.buffers,
            "h": client.hvp(trained, gradient.params),
        }

    expected = place.run(place.sequential(), everything).uploads
    for lanes, chunk in [(5, 5), (2, 5), (1, 2)]:
        found = place.run(place.batched(lanes, chunk), everything).uploads
        assert_close(found, expected, rtol=1e-9, atol=1e-13)
