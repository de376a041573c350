"""Sums of squares are those of the gradients that every row has for itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.kernels.squares import row_squares, square_lanes

SHAPES = [
    # batch, channels, height, width, filters, size, padding
    (3, 2, 9, 8, 5, 3, 1),
    (4, 1, 12, 12, 10, 5, 0),
    (2, 7, 6, 6, 20, 5, 4),
    (3, 3, 7, 9, 70, 3, 0),
    (2, 3, 5, 5, 4, 1, 0),
]


def tensors(
    shape: tuple[int, ...], lanes: tuple[int, ...] = (), stride: int = 1, **kind: object
) -> list[Tensor]:
    """Images, gradients of outputs, and weights of rows, one of which is zero."""
    batch, channels, height, width, filters, size, padding = shape
    torch.manual_seed(0)
    outside = 2 * padding - size
    rows, columns = ((side + outside) // stride + 1 for side in (height, width))
    x = torch.randn(*lanes, batch, channels, height, width, **kind)
    grad = torch.randn(*lanes, batch, filters, rows, columns, **kind)
    weight = torch.linspace(0, 1.5, batch, **kind).expand(*lanes, batch).contiguous()
    return [x, grad, weight]


def row_by_row(x: Tensor, grad: Tensor, weight: Tensor, size: int, padding: int, stride: int = 1):
    """The sums from torch's own gradient of each row."""
    filters = x.new_zeros(grad.shape[1], x.shape[1], size, size)
    biases = x.new_zeros(grad.shape[1])
    sums = [torch.zeros_like(filters), torch.zeros_like(biases)]
    for image, slope, counts in zip(x, grad, weight, strict=True):

        def outputs(filters: Tensor, biases: Tensor, image=image, slope=slope) -> Tensor:
            return (F.conv2d(image[None], filters, biases, padding=padding, stride=stride) * slope).sum()

        found = torch.func.grad(outputs, (0, 1))(filters, biases)
        sums = [total + counts * value**2 for total, value in zip(sums, found, strict=True)]
    return tuple(sums)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_those_of_every_row(shape, stride):
    given = tensors(shape, stride=stride, dtype=torch.float64)
    *_, size, padding = shape
    found = row_squares(*given, (size,) * 2, (padding,) * 2, (stride,) * 2)
    assert_close(found, row_by_row(*given, size, padding, stride))


@pytest.mark.parametrize("shape", SHAPES)
def test_compilers_are_told_the_shapes(shape):
    _, channels, *_, filters, size, padding = shape
    x, grad, weight = tensors(shape, (2,), device="meta")
    found = square_lanes(x.movedim(2, 4), grad.movedim(2, 4), weight, [size] * 2, [padding] * 2)
    assert [value.shape for value in found] == [(2, filters, size, size, channels), (2, filters)]
    assert all(value.is_contiguous() for value in found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_compute_what_torch_computes(shape):
    *_, size, padding = shape
    x, grad, weight = tensors(shape, (2,), device="cuda")
    of_weight, of_bias = square_lanes(x.movedim(2, 4), grad.movedim(2, 4), weight, [size] * 2, [padding] * 2)
    for lane in range(2):
        expected = row_by_row(*(value[lane].double() for value in (x, grad, weight)), size, padding)
        assert_close(of_weight[lane].movedim(3, 1).double(), expected[0], rtol=1e-4, atol=1e-4)
        assert_close(of_bias[lane].double(), expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lanes", [(3,), (2, 2)])
def test_many_clients_at_once_on_a_gpu(lanes):
    shape = SHAPES[0]
    *_, size, padding = shape
    given = tensors(shape, lanes, device="cuda")

    def sums(x: Tensor, grad: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return row_squares(x, grad, weight, (size,) * 2, (padding,) * 2, (1, 1))

    found, expected = sums, sums
    for _ in lanes:
        found, expected = torch.func.vmap(found), torch.func.vmap(expected)
    for value, reference in zip(found(*given), expected(*(one.double() for one in given)), strict=True):
        assert (value - reference).norm() <= 1e-4 * reference.norm()
        assert value.dtype == torch.float32
