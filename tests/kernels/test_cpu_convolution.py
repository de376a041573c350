"""The convolution for small layers on a CPU is conv2d, with its gradients of first and second order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.engine.executors.program import record
from consilience.kernels import cpu_convolution
from consilience.kernels.convolution import Convolution
from consilience.kernels.cpu_convolution import convolve, fits

SHAPES = [
    # batch, channels, height, width, filters, size, padding
    (3, 1, 12, 12, 10, (5, 5), (0, 0)),
    (2, 10, 12, 12, 20, (5, 5), (0, 0)),
    (2, 3, 9, 8, 5, (3, 3), (1, 1)),
    (2, 7, 6, 6, 20, (5, 5), (4, 4)),
    (3, 3, 7, 11, 33, (3, 2), (0, 1)),
    (2, 2, 5, 7, 90, (2, 3), (1, 0)),
    (0, 2, 5, 7, 4, (2, 3), (1, 0)),
]


def tensors(shape, lanes: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    batch, channels, height, width, filters, size, _ = shape
    torch.manual_seed(0)
    sizes = ((batch, channels, height, width), (filters, channels, *size), (filters,))
    return tuple(torch.randn(*lanes, *one, dtype=torch.float64) for one in sizes)


def functions(padding):
    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return convolve(x, weight, bias, padding).sin().sum()

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding).sin().sum()

    return ours, plain


def first_order(function):
    return torch.func.grad(function, (0, 1, 2))


def second_order(function):
    """The gradient of a function of all gradients, with respect to everything."""

    def slope(*given: Tensor) -> Tensor:
        pairs = zip(first_order(function)(*given), given, strict=True)
        return sum((grad * value.cos()).sum() for grad, value in pairs)

    return torch.func.grad(slope, (0, 1, 2))


def per_row(function):
    rows = torch.func.grad(lambda x, *weights: function(x[None], *weights), (0, 1, 2))
    return torch.func.vmap(rows, (0, None, None))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_conv2d(shape):
    padding, given = shape[-1], tensors(shape)
    assert_close(convolve(*given, padding), F.conv2d(*given, padding=padding), rtol=1e-10, atol=1e-10)
    x, weight, _ = given
    without_bias = F.conv2d(x, weight, padding=padding)
    assert_close(convolve(x, weight, None, padding), without_bias, rtol=1e-10, atol=1e-10)
    ours, plain = functions(padding)
    for made in (first_order, second_order, *([per_row] if len(x) else [])):
        assert_close(made(ours)(*given), made(plain)(*given), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lanes", [(3,), (2, 2)])
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_many_clients_at_once(shape, lanes):
    given = tensors(shape, lanes)
    for made in (first_order, second_order):
        ours, plain = (made(function) for function in functions(shape[-1]))
        for _ in lanes:
            ours, plain = torch.func.vmap(ours), torch.func.vmap(plain)
        assert_close(ours(*given), plain(*given), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("last", [False, True])
def test_it_can_be_recorded_with_channels_in_any_place(last):
    ours, plain = (first_order(function) for function in functions((0, 0)))
    kind = torch.channels_last if last else torch.contiguous_format
    first, second = (
        [value.to(memory_format=kind) if value.ndim == 4 else value for value in tensors(SHAPES[1])]
        for _ in range(2)
    )
    program = record(ours, first)
    others = [value * 2 for value in second]
    assert_close(tuple(program(*others)), plain(*others), rtol=1e-10, atol=1e-10)
    assert not any("convolution" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize(
    ("images", "weight", "expected"),
    [
        ((10, 1, 28, 28), (10, 1, 5, 5), True),
        ((100, 20, 12, 12), (50, 20, 5, 5), True),
        ((7, 1, 28, 28), (10, 1, 5, 5), False),  # a small batch
        ((10, 32, 14, 14), (64, 32, 5, 5), False),
        ((10, 16, 32, 32), (16, 16, 3, 3), False),
        ((1, 28, 28), (10, 1, 5, 5), False),  # an image without a batch
    ],
)
def test_which_layers_take_this_way(images, weight, expected):
    assert fits(torch.empty(images), torch.empty(weight)) == expected
    assert not fits(torch.empty(images, device="meta"), torch.empty(weight, device="meta"))


def test_what_comes_out_has_its_batch_last_and_goes_on_without_a_copy():
    x, weight = torch.randn(9, 3, 8, 8), torch.randn(4, 3, 5, 5)
    first = convolve(x, weight, None, (2, 2))
    assert first.stride(0) == 1
    again = record(lambda given: (convolve(given, torch.ones(2, 4, 5, 5), None, (0, 0)),), [first.relu()])
    copies = [node for node in again.graph.nodes if "clone" in str(node.target)]
    assert len(copies) == 2  # patches, and filters with their rows first


@pytest.mark.parametrize("low", [False, True])
def test_a_layer_takes_it_unless_products_are_to_be_rounded(low, monkeypatch):
    calls = []
    monkeypatch.setattr(cpu_convolution, "convolve", lambda *given: calls.append(given) or convolve(*given))
    layer, x = nn.Conv2d(1, 10, 5, padding=2, bias=False), torch.randn(8, 1, 28, 28)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        assert_close(Convolution.of(layer, free=True)(x), layer(x))
    assert len(calls) == (not low)
    assert Convolution.of(layer)(x).is_contiguous()  # somebody may want a view of it
    assert len(calls) == (not low)
