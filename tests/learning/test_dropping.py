"""Dropout of lanes is that of each, in one operation, and its kernel gives the same masks bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.testing import assert_close

from consilience.engine.executors.program import record
from consilience.learning.dropping import drop_lanes, dropped, dropped_as_a_lane

KEYS = torch.tensor([[3, 2**40, 2**62 - 1], [5, 3, 2**31]])
KINDS = [(0.5, False), (0.3, False), (0.3, True)]


def images(*shape: int, last: bool = False) -> Tensor:
    """Numbers [..., channels, height, width]; with channels last in memory, if so."""
    torch.manual_seed(0)
    if not last:
        return torch.randn(*shape, dtype=torch.float64)
    return torch.randn(*shape[:-3], *shape[-2:], shape[-3], dtype=torch.float64).movedim(-1, -3)


def second_order(function):
    return grad(lambda x: (grad(function)(x) * x.cos()).sum())


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("probability", "whole"), KINDS)
def test_it_is_dropout_with_its_gradients_for_one_client_and_for_lanes_of_lanes(probability, whole, last):
    kind = (7, probability, whole)
    x = images(2, 3, 4, 5, 6, 2, last=last)

    def ours(x: Tensor, key: Tensor) -> Tensor:
        return dropped_as_a_lane(x, key, *kind).sin().sum()

    def plain(x: Tensor, key: Tensor) -> Tensor:
        return dropped(x, key, *kind).sin().sum()

    assert torch.equal(
        vmap(vmap(lambda x, key: dropped_as_a_lane(x, key, *kind)))(x, KEYS),
        torch.stack([torch.stack([dropped(x[i, j], KEYS[i, j], *kind) for j in range(3)]) for i in range(2)]),
    )
    for made in (grad, second_order):
        found, wanted = (
            vmap(vmap(lambda x, key, of=of, made=made: made(lambda x: of(x, key))(x)), 1, 1)(x, KEYS)
            for of in (ours, plain)
        )
        assert_close(found, wanted)


def test_shared_images_and_shared_keys_are_those_of_every_lane():
    x, keys = images(3, 4, 5), KEYS[0]

    def one(x: Tensor, key: Tensor) -> Tensor:
        return dropped_as_a_lane(x, key, 1, 0.5, False)

    assert torch.equal(
        vmap(one, (None, 0))(x[0], keys), torch.stack([dropped(x[0], key, 1, 0.5, False) for key in keys])
    )
    assert torch.equal(
        vmap(one, (0, None))(x, keys[1]), torch.stack([dropped(lane, keys[1], 1, 0.5, False) for lane in x])
    )


def test_gradients_through_lanes_are_taken_too():
    x, keys = images(3, 4, 5), KEYS[0]

    def total(function):
        return grad(lambda x: vmap(function)(x, keys).square().sum())(x)

    assert_close(
        total(lambda x, key: dropped_as_a_lane(x, key, 1, 0.5, False)),
        total(lambda x, key: dropped(x, key, 1, 0.5, False)),
    )


def test_one_operation_forward_and_one_backward_keep_no_mask_and_leave_channels_where_they_are():
    x = images(3, 4, 5, 6, 2, last=True)

    def step(x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        out, back = torch.func.vjp(lambda x: dropped_as_a_lane(x, key, 1, 0.5, False), x)
        return out, back(x)[0]

    program = record(vmap(step), [x, KEYS[0]])
    kernels = [node for node in program.graph.nodes if "consilience" in str(node.target)]
    assert [len(node.all_input_nodes) for node in kernels] == [2, 2]
    views = {"permute", "view", "squeeze", "unsqueeze"}
    others = {str(node.target).split(".")[1] for node in program.graph.nodes if "aten" in str(node.target)}
    assert others <= views
    assert all(value.movedim(2, -1).is_contiguous() for value in program(x, KEYS[0]))


@pytest.mark.parametrize("last", [False, True])
def test_torch_knows_what_the_operation_gives(last):
    torch.library.opcheck(drop_lanes, (images(3, 4, 5, 6), KEYS[0], 1, 0.5, False, last))


def check_kernel(device: str) -> None:
    from consilience.kernels.triton_dropout import drop
    from consilience.learning.randomness import salt

    keys = KEYS[0].to(device)
    for shape in ((3, 4, 5, 6, 2), (3, 70, 31), (3, 5), (3, 2, 20, 9, 9)):
        x = images(*shape).to(device)
        for probability, whole in KINDS:
            for last in (False, True) if len(shape) > 3 else (False,):
                kind = (salt(100003), int((probability - 0.5) * 2**32), 1 / (1 - probability))
                found = drop(x.float(), keys, *kind, whole=whole, last=last)
                wanted = drop_lanes(x, keys, 100003, probability, whole, last)
                assert torch.equal(found == 0, wanted == 0)
                assert_close(found, wanted.float())


INTERPRETED = "from tests.learning.test_dropping import check_kernel; check_kernel('cpu')"


def test_kernels_compute_what_torch_computes(interpreted):
    interpreted(INTERPRETED)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu():
    check_kernel("cuda")
    x, key = torch.randn(40, 30, device="cuda", dtype=torch.bfloat16), torch.tensor(5, device="cuda")
    exact = dropped(x.double(), key, 1, 0.3, False)
    assert_close(dropped(x, key, 1, 0.3, False), exact.to(torch.bfloat16))
