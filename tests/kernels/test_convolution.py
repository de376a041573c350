"""The convolution that can run for many clients is conv2d, with its gradients of first and second order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight
from torch.testing import assert_close

from consilience import kernels
from consilience.kernels import convolution
from consilience.kernels.convolution import (
    Convolution,
    _channels_last,
    _convolve,
    convolve_lanes,
    correlate_lanes,
)

SHAPES = [
    # batch, channels, height, width, filters, size, padding
    (3, 2, 9, 8, 5, 3, 1),
    (4, 1, 12, 12, 10, 5, 0),
    (2, 7, 6, 6, 20, 5, 4),
    (3, 3, 7, 9, 33, 3, 0),
    (2, 3, 5, 5, 4, 1, 0),
    (2, 3, 9, 9, 6, 5, 0),
]


def tensors(shape: tuple[int, ...], lanes: tuple[int, ...] = (), **kind: object) -> tuple[Tensor, ...]:
    batch, channels, height, width, filters, size, _ = shape
    torch.manual_seed(0)
    sizes = ((batch, channels, height, width), (filters, channels, size, size), (filters,))
    return tuple(torch.randn(*lanes, *one, **kind) for one in sizes)


def functions(padding: int):
    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _convolve(x, weight, bias, (padding, padding)).sin().sum()

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding).sin().sum()

    return ours, plain


def second_order(function):
    """The gradient of a function of the gradient, with respect to the weights."""

    def slope(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (torch.func.grad(function, 1)(x, weight, bias) * weight.cos()).sum()

    return torch.func.grad(slope, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_conv2d(shape):
    given = tensors(shape, dtype=torch.float64)
    ours, plain = functions(shape[-1])
    assert_close(_convolve(*given, (shape[-1],) * 2), F.conv2d(*given, padding=shape[-1]))
    assert_close(torch.func.grad(ours, (0, 1, 2))(*given), torch.func.grad(plain, (0, 1, 2))(*given))
    assert_close(second_order(ours)(*given), second_order(plain)(*given))
    # the same weights for every row, as per-row gradients need it
    rows = torch.func.vmap(torch.func.grad(lambda x, w, b: ours(x[None], w, b)), (0, None, None))(*given)
    assert_close(rows, torch.func.grad(plain)(*given))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lanes", [(3,), (2, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_many_clients_at_once_on_a_gpu(shape, lanes):
    given = tensors(shape, lanes, device="cuda")
    ours, plain = functions(shape[-1])
    exact = [value.double() for value in given]
    for made in (lambda one: torch.func.grad(one, (0, 1, 2)), second_order):
        found, expected = made(ours), made(plain)
        for _ in lanes:
            found, expected = torch.func.vmap(found), torch.func.vmap(expected)
        found, expected = found(*given), expected(*exact)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for value, reference in pairs:
            assert (value - reference).norm() <= 1e-4 * reference.norm()


class PlainLaunches:
    """What the kernels compute, lane by lane, by torch."""

    @staticmethod
    def convolve(x, weight, bias, padding):
        each = [F.conv2d(*one, padding=padding) for one in zip(x, weight, bias, strict=True)]
        return torch.stack(each).permute(0, 1, 3, 4, 2).contiguous()

    @staticmethod
    def convolve_deep(x, weight, bias, padding):
        return PlainLaunches.convolve(x.movedim(-1, 2), weight.movedim(-1, 2), bias, padding)

    @staticmethod
    def correlate(x, grad, size, padding):
        grad = grad.movedim(-1, 2)
        shape = (grad.shape[2], x.shape[2], *size)
        each = [conv2d_weight(a, shape, b, padding=padding) for a, b in zip(x, grad, strict=True)]
        return torch.stack(each), grad.sum((1, 3, 4))

    @staticmethod
    def correlate_deep(x, grad, size, padding):
        of_weight, of_bias = PlainLaunches.correlate(x.movedim(-1, 2), grad, size, padding)
        return of_weight.movedim(2, -1).contiguous(), of_bias


@pytest.mark.parametrize("lanes", [(3,), (2, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_many_clients_at_once(shape, lanes, monkeypatch):
    """What is done around the kernels, without them."""
    monkeypatch.setattr(kernels, "triton_convolution", PlainLaunches, raising=False)
    monkeypatch.setattr(convolution, "SMALL", 16)  # pieces of float64 are twice as long
    given = tensors(shape, lanes, dtype=torch.float64)
    ours, plain = functions(shape[-1])
    for made in (lambda one: torch.func.grad(one, (0, 1, 2)), second_order):
        found, expected = made(ours), made(plain)
        for _ in lanes:
            found, expected = torch.func.vmap(found), torch.func.vmap(expected)
        assert_close(found(*given), expected(*given))


def operations(shape: tuple[int, ...], deep: bool, device: str):
    """Both operations with arguments, for two lanes, and the shapes of their results."""
    batch, channels, height, width, filters, size, padding = shape
    x, weight, bias = tensors(shape, (2,), device=device)
    if deep:
        x, weight = _channels_last(x), _channels_last(weight)
    outside = 2 * padding - size + 1
    out = (2, batch, height + outside, width + outside, filters)
    of_weight = (2, filters, size, size, channels) if deep else (2, filters, channels, size, size)
    paddings = [padding, padding]
    return [
        (convolve_lanes, (x, weight, bias, paddings, deep), [out]),
        (correlate_lanes, (x, x.new_ones(out), [size, size], paddings, deep), [of_weight, (2, filters)]),
    ]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_compilers_are_told_the_shapes(shape, deep):
    for operation, arguments, shapes in operations(shape, deep, "meta"):
        found = operation(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        assert [value.shape for value in found] == shapes
        assert all(value.is_contiguous() for value in found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("deep", [False, True])
def test_what_compilers_are_told_is_so(deep):
    for operation, arguments, _ in operations(SHAPES[0], deep, "cuda"):
        torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("free", [False, True])
def test_only_free_results_lie_in_another_order(free):
    x, weight, bias = tensors(SHAPES[0], (3,), device="cuda")
    found = torch.func.vmap(lambda *given: _convolve(*given, (1, 1), free))(x, weight, bias)
    assert found.is_contiguous() != free
    assert found.movedim(2, -1).is_contiguous() == free


@pytest.mark.parametrize(
    ("layer", "fits"),
    [
        (nn.Conv2d(2, 3, 3, padding=1), True),
        (nn.Conv2d(2, 3, (1, 3), bias=False), True),
        (nn.Conv2d(2, 3, 3, stride=2), False),
        (nn.Conv2d(2, 3, 3, dilation=2), False),
        (nn.Conv2d(2, 4, 3, groups=2), False),
        (nn.Conv2d(2, 3, 3, padding="same"), False),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(2, 3, 1, padding=1), False),
    ],
)
def test_which_layers_are_such_convolutions(layer, fits):
    assert Convolution.fits(layer) == fits
    if fits:
        x = torch.randn(2, 2, 5, 5)
        assert torch.equal(Convolution.of(layer)(x), layer(x))
        assert dict(Convolution.of(layer).named_parameters()).keys() == dict(layer.named_parameters()).keys()
