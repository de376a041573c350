"""Dense layers of many lanes, and updates in words, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.kernels import descent
from consilience.kernels.dense import dense_lanes, dense_lanes_backward, descend
from consilience.kernels.descent import Form, Update

LANES, ROWS, INS, OUTS = 3, 5, 7, 4


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return random(LANES, ROWS, INS), random(LANES, OUTS, INS), random(LANES, OUTS)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_layers_are_those_of_torch(relu, biased):
    x, weight, bias = layer()
    found = dense_lanes(x, weight, bias if biased else None, relu, None, None)
    for lane in range(LANES):
        plain = F.linear(x[lane], weight[lane], bias[lane] if biased else None)
        assert_close(found[lane], plain.relu() if relu else plain)


def test_inputs_can_be_bytes():
    _, weight, bias = layer()
    pixels = torch.randint(0, 256, (LANES, ROWS, INS), dtype=torch.uint8)
    shift, scale = (torch.full((1, 1, 1), value, dtype=torch.float64) for value in (3.0, 7.0))
    x = (pixels.double() - 3) / 7
    assert_close(
        dense_lanes(pixels, weight, bias, True, shift, scale), dense_lanes(x, weight, bias, True, None, None)
    )


def test_gradients_with_respect_to_inputs_are_those_of_autograd():
    x, weight, bias = layer()
    grad = random(LANES, ROWS, OUTS)
    before = x.requires_grad_()
    outputs = torch.baddbmm(bias[:, None], before.relu(), weight.transpose(1, 2))
    (expected,) = torch.autograd.grad(outputs, before, grad)
    with torch.no_grad():
        assert_close(dense_lanes_backward(grad, weight, before.relu()), expected)
        assert_close(dense_lanes_backward(grad, weight, None), grad @ weight)


def moving() -> tuple[list[torch.Tensor], list[torch.Tensor], list[Update]]:
    """Parameters and velocities, what is only read, and how the former move."""
    written = [
        random(LANES, OUTS, INS),
        random(LANES, OUTS, INS),
        random(LANES, OUTS),
        random(LANES, 2, 3, 4),
    ]
    given = [
        random(LANES, ROWS, OUTS),
        random(LANES, ROWS, INS),
        random(LANES, 1, 1),
        random(OUTS, INS),
        random(1),
        random(LANES, 4, 2, 3).permute(0, 2, 3, 1),
    ]
    updates = [
        Update(
            (4, 5),
            (("a0", 0), ("a1", 1), ("a2", 6), ("a3", 7)),
            ("t0 = g + 0.1 * (a0 - a3)", "t1 = a1 * 0.9 + t0", "t2 = a0 - a2 * t1"),
            ((0, "t2"), (1, "t1")),
        ),
        Update((4,), (("a0", 2), ("a1", 8)), ("t0 = a0 - a1 * g",), ((2, "t0"),)),
        Update(
            (), (("a0", 3), ("a1", 9)), ("t0 = ops.where(a0 > 0, ops.sqrt(ops.abs(a1)), -a1)",), ((3, "t0"),)
        ),
    ]
    return written, given, updates


def test_updates_do_what_their_lines_say():
    written, given, updates = moving()
    weight, velocity, bias, other = (value.clone() for value in written)
    descend(written, given, descent.encoded(updates))
    grad, x, rate, anchor, number, turned = given
    after = 0.9 * velocity + grad.transpose(1, 2) @ x + 0.1 * (weight - anchor)
    assert_close(written[1], after)
    assert_close(written[0], weight - rate * after)
    assert_close(written[2], bias - number * grad.sum(1))
    assert_close(written[3], torch.where(other > 0, turned.abs().sqrt(), -turned))


def test_updates_survive_being_a_string():
    updates = moving()[2]
    assert descent.decoded(descent.encoded(updates)) == updates


def test_torch_knows_what_the_operations_write():
    x, weight, bias = layer()
    torch.library.opcheck(dense_lanes, (x, weight, bias, True, None, None))
    torch.library.opcheck(dense_lanes_backward, (random(LANES, ROWS, OUTS), weight, x))
    written, given, updates = moving()
    torch.library.opcheck(descend, (written, given, descent.encoded(updates)))


def test_the_text_of_a_kernel_is_python_and_the_same_each_time():
    written, given, updates = moving()
    forms = [Form.of(value) for value in (*written, *given)]
    source = descent.kernel(updates, forms, "tf32")
    compile(source.text, "kernel", "exec")
    assert source == descent.kernel(updates, forms, "tf32")
    assert source.programs == 3 * LANES  # everything is small


INTERPRETED = """
import torch
from tests.kernels.test_dense import moving
from consilience.kernels import descent, triton_dense
torch.manual_seed(0)
x, weight, bias = torch.randn(3, 37, 70), torch.randn(3, 33, 70), torch.randn(3, 33)
outputs = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
for turn in (False, True):
    torch.testing.assert_close(triton_dense.forward(x, weight, bias, relu=True, turn=turn), outputs.relu())
pixels, one = torch.randint(0, 256, x.shape, dtype=torch.uint8), torch.full((1,), 9.0)
expected = torch.baddbmm(bias[:, None], (pixels - one) / one, weight.transpose(1, 2))
found = triton_dense.forward(pixels, weight, bias, one, one, relu=False)
torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
found = triton_dense.backward(outputs, weight, x)
torch.testing.assert_close(found, torch.where(x > 0, outputs @ weight, 0), rtol=1e-4, atol=1e-4)
written, given, updates = moving()
tensors = [value.float() for value in (*written, *given)]
plain = [value.clone() for value in tensors]
triton_dense.descend(tensors, updates)
descent.apply(plain, updates)
torch.testing.assert_close(tensors, plain)
"""


def test_kernels_compute_what_torch_computes(interpreted):
    interpreted(INTERPRETED)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("rows", [1, 32, 100])
def test_kernels_on_a_gpu(rows, dtype, error):
    x, grad = (torch.randn(3, rows, size, device="cuda").to(dtype) for size in (200, 70))
    weight, bias = torch.randn(3, 70, 200, device="cuda"), torch.randn(3, 70, device="cuda")
    moves = descent.encoded(
        [Update((1, 2), (("a0", 0),), ("t0 = a0 - g.to(ops.float32)",), ((0, "t0"),))],
    )

    def found(x, grad, weight, bias):
        outputs = dense_lanes(x, weight, bias, True, None, None)
        backwards = dense_lanes_backward(grad, weight, x)
        descend([weight], [grad, x], moves)
        return outputs, backwards, weight

    exact = found(*(value.double() for value in (x, grad, weight, bias)))
    for value, reference in zip(found(x, grad, weight, bias), exact, strict=True):
        assert (value - reference).norm() <= error * reference.norm()
