"""Arithmetic on named tensors against numpy, and the shape-changing functions against their inverses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.errors import UserError

SHAPES = {"a.weight": (3, 2), "a.bias": (3,), "b.scale": ()}


def params(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(s, dtype=torch.float64, generator=random) for name, s in SHAPES.items()}


def vector(values: dict[str, torch.Tensor]) -> np.ndarray:
    assert {name: tuple(value.shape) for name, value in values.items()} == SHAPES
    return torch.cat([value.reshape(-1) for value in values.values()]).numpy()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (tree.add, lambda x, y: x + y),
        (tree.sub, lambda x, y: x - y),
        (tree.mul, lambda x, y: x * y),
        (lambda x, y: tree.scale(3.0, x), lambda x, y: 3 * x),
        (lambda x, y: tree.scale(torch.tensor(3.0), x), lambda x, y: 3 * x),
        (lambda x, y: tree.axpy(2.0, x, y), lambda x, y: 2 * x + y),
        (lambda x, y: tree.zeros_like(x), lambda x, y: 0 * x),
        (lambda x, y: tree.unit(x), lambda x, y: x / np.linalg.norm(x)),
    ],
)
def test_arithmetic_equals_numpy_and_writes_nothing(function, expected):
    left, right = params(0), params(1)
    before = vector(left).copy(), vector(right).copy()
    np.testing.assert_allclose(vector(function(left, right)), expected(*before), rtol=1e-14)
    np.testing.assert_array_equal(vector(left), before[0])
    np.testing.assert_array_equal(vector(right), before[1])


def test_inner_products():
    left, right = params(0), params(1)
    assert tree.dot(left, right).item() == pytest.approx(vector(left) @ vector(right), rel=1e-14)
    assert tree.sq_norm(left).item() == pytest.approx(vector(left) @ vector(left), rel=1e-14)
    assert tree.dot(left, right).shape == ()


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e30])
def test_unit_neither_underflows_nor_overflows(size):
    values = {"a": torch.tensor([3 * size, 0.0]), "b": torch.tensor(4 * size)}
    assert_close(tree.unit(values), {"a": torch.tensor([0.6, 0.0]), "b": torch.tensor(0.8)})


def test_unit_of_zeros_is_zeros_and_lanes_do_not_mix():
    stacked = {"a": torch.tensor([[0.0, 0.0], [3.0, 4.0]])}
    assert torch.equal(torch.func.vmap(tree.unit)(stacked)["a"], torch.tensor([[0.0, 0.0], [0.6, 0.8]]))


MODEL = {
    "conv.weight": torch.ones(4, 3, 2, 2),
    "norm.weight": torch.ones(4),
    "norm.bias": torch.ones(4),
    "body.fc.weight": torch.ones(5, 4),
    "body.fc.bias": torch.ones(5),
    "head.weight": torch.ones(2, 5),
}
CONV, FC, HEAD = ("conv.weight",), ("body.fc.weight", "body.fc.bias"), ("head.weight",)


@pytest.mark.parametrize(
    ("which", "chosen"), [("output", (HEAD,)), ("last2", (FC, HEAD)), ("all", (CONV, FC, HEAD))]
)
def test_select_layers_leaves_normalisation_out(which, chosen):
    assert tree.select_layers(MODEL, which) == chosen


def test_layers_group_weight_and_bias():
    assert tree.layers(MODEL) == (CONV, ("norm.weight", "norm.bias"), FC, HEAD)
    assert tree.weight_layers({name: value[None] for name, value in MODEL.items()}, 3) == (CONV, FC, HEAD)


def test_a_model_without_matrices_has_no_layer_to_select():
    with pytest.raises(UserError, match="no convolutional or linear layer"):
        tree.select_layers({"norm.weight": torch.ones(4)}, "all")


def test_join_refuses_clashes_by_name():
    one, two = {"a": params(0)}, {"b": params(1)}
    assert tree.join(one, {}, two) == one | two
    with pytest.raises(UserError, match="'b'"):
        tree.join(one, two, {"b": {}})


def test_where_chooses_a_whole_state():
    left, right = {"a": params(0)}, {"a": params(1)}
    assert_close(tree.where(torch.tensor(True), left, right), left, rtol=0, atol=0)
    assert_close(tree.where(torch.tensor(False), left, right), right, rtol=0, atol=0)


def test_stack_index_and_concatenate_are_inverses():
    states = [{"a": params(seed), "n": {"count": torch.tensor(seed)}} for seed in range(4)]
    stacked = tree.stack(states)
    assert stacked["a"]["a.weight"].shape == (4, 3, 2)
    for row, state in enumerate(states):
        assert_close(tree.index(stacked, row), state, rtol=0, atol=0)
    parts = [tree.index(stacked, slice(0, 1)), tree.index(stacked, torch.tensor([1, 2, 3]))]
    assert_close(tree.concatenate(parts), stacked, rtol=0, atol=0)


def test_reshape_leading_replaces_only_the_first_axes():
    state = {"a": {"x": torch.arange(24).reshape(2, 3, 4), "y": torch.arange(6).reshape(2, 3)}}
    merged = tree.reshape_leading(state, 2, 6)
    assert {name: value.shape for name, value in merged["a"].items()} == {"x": (6, 4), "y": (6,)}
    assert_close(tree.reshape_leading(merged, 1, 2, 3), state)


def test_flatten_round_trip_keeps_order_and_empty_groups():
    state = {"z": params(0), "none": {}, "a": {"with/slash": torch.ones(2)}}
    flat = tree.flatten(state)
    assert list(flat) == ["z/a.weight", "z/a.bias", "z/b.scale", "a/with/slash"]
    back = tree.unflatten(flat, state)
    assert list(back) == list(state)
    assert_close(back, state, rtol=0, atol=0)


def test_nbytes_counts_every_type():
    assert (
        tree.nbytes({"a": {"x": torch.ones(3, 2)}, "b": {"n": torch.tensor(1), "m": torch.ones(5).bool()}})
        == 37
    )
