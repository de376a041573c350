"""Losses of many lanes and their gradients, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from consilience.kernels.classification import classify_lanes
from consilience.learning.task import mean_loss
from consilience.problems import Classification


def rows(lanes: int, count: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets and weights; some rows do not count, and one has no class."""
    torch.manual_seed(0)
    logits = 30 * torch.randn(lanes, count, classes, dtype=torch.float64)
    targets = torch.randint(0, classes, (lanes, count))
    weight = torch.randint(0, 3, (lanes, count)).double() / 2
    targets[0, 0], weight[:, :2] = -100, 1.0
    return logits, targets, weight


def expected(logits: Tensor, targets: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    def loss(logits: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        return mean_loss(Classification().losses(logits, targets), weight)

    grad, value = torch.func.vmap(torch.func.grad_and_value(loss))(logits, targets, weight)
    return scale * grad, value, weight.sum(1)


@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 2, 10), (1, 40, 2)])
def test_losses_and_gradients_are_those_of_torch(shape):
    given = (*rows(*shape), 0.5)
    assert_close(classify_lanes(*given), expected(*given))
    torch.library.opcheck(classify_lanes, given)


INTERPRETED = """
import torch
from tests.kernels.test_classification import expected, rows
from consilience.kernels.triton_classification import classify
for shape in ((3, 5, 4), (2, 37, 10), (1, 9, 1000), (2, 2, 5000)):
    logits, targets, weight = rows(*shape)
    found = classify(logits.float(), targets, weight.float(), 0.5)
    wanted = expected(logits, targets, weight, 0.5)
    torch.testing.assert_close(found, tuple(value.float() for value in wanted), rtol=1e-5, atol=1e-5)
"""


def test_kernels_compute_what_torch_computes(interpreted):
    interpreted(INTERPRETED)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(3, 5, 4), (100, 32, 10), (2, 130, 62), (2, 4, 1000)])
def test_kernels_on_a_gpu(shape):
    logits, targets, weight = (value.cuda() for value in rows(*shape))
    found = classify_lanes(logits.float(), targets, weight.float(), 0.5)
    wanted = expected(logits, targets, weight, 0.5)
    assert_close(found, tuple(value.float() for value in wanted), rtol=1e-4, atol=1e-5)
