"""The convolution that can run for many clients is conv2d, with its gradients of first and second order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.kernels.convolution import Convolution, _convolve

SHAPES = [
    # batch, channels, height, width, filters, size, padding
    (3, 2, 9, 8, 5, 3, 1),
    (4, 1, 12, 12, 10, 5, 0),
    (2, 7, 6, 6, 20, 5, 4),
    (3, 3, 7, 9, 33, 3, 0),
    (2, 3, 5, 5, 4, 1, 0),
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
