"""Pooling of ours is torch's own, with its gradients of first and second order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.engine.executors.program import form, record
from consilience.kernels.gpu_pooling import pool, pool_pixels, put_pixels, take_pixels
from consilience.kernels.pooling import Pooling
from consilience.learning.layers import convert


def batch_last(*shape: int, few: bool = False) -> Tensor:
    """Images [..., batch, channels, height, width]; with `few` values many neighbours are equal."""
    torch.manual_seed(0)
    *lanes, batch, channels, height, width = shape
    drawn = torch.randn(*lanes, height, channels, width, batch, dtype=torch.float64)
    return (drawn.round() if few else drawn).permute(*range(len(lanes)), -1, -3, -4, -2)


def ours(x: Tensor) -> Tensor:
    return Pooling.of(nn.MaxPool2d(2))(x).sin().sum()


def plain(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2).sin().sum()


def second_order(function):
    return torch.func.grad(lambda x: (torch.func.grad(function)(x) * x.cos()).sum())


@pytest.mark.parametrize("few", [False, True])
def test_it_is_torchs_own_also_where_neighbours_are_equal(few):
    x = batch_last(5, 3, 8, 6, few=few)
    assert_close(Pooling.of(nn.MaxPool2d(2))(x), F.max_pool2d(x, 2), rtol=0, atol=0)
    for made in (torch.func.grad, second_order):
        assert_close(made(ours)(x), made(plain)(x), rtol=1e-12, atol=1e-12)


def test_many_clients_at_once():
    x = batch_last(3, 5, 2, 4, 6)
    for made in (torch.func.grad, second_order):
        wanted = torch.stack([made(plain)(lane) for lane in x])
        assert_close(torch.func.vmap(made(ours))(x), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("few", [False, True])
def test_what_gpus_do_is_torchs_own_for_one_client_and_for_lanes_of_lanes(few, relu):
    def ours(x: Tensor) -> Tensor:
        return pool(x, relu).sin().sum()

    def plain(x: Tensor) -> Tensor:
        return F.max_pool2d(x.relu() if relu else x, 2).sin().sum()

    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, 6, 4, dtype=torch.float64)
    x = (x.round() if few else x).movedim(-1, -3)
    lane = x[0, 0]
    assert torch.equal(pool(lane, relu), F.max_pool2d(lane.relu() if relu else lane, 2))
    for made in (torch.func.grad, second_order):
        wanted = torch.stack([made(plain)(one) for one in x.flatten(0, 1)]).reshape(x.shape)
        assert_close(made(ours)(lane), wanted[0, 0], rtol=1e-12, atol=1e-12)
        found = torch.func.vmap(torch.func.vmap(made(ours)), 1, 1)(x)
        assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_what_gpus_do_leaves_channels_last_in_memory_and_keeps_a_byte_a_window():
    x = torch.randn(3, 2, 6, 4, 5).movedim(-1, -3)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        found, back = torch.func.vjp(lambda x: pool(x, True).flatten(1), x)
        return back(found)[0], pool(x, True)

    program = record(torch.func.vmap(step), [x])
    assert all(value.movedim(-3, -1).is_contiguous() for value in program(x))
    (put,) = (node for node in program.graph.nodes if "put_pixels" in str(node.target))
    values, places = (form(node) for node in put.all_input_nodes)
    assert places.dtype == torch.int8
    assert places.contiguous
    assert not values.contiguous  # read where it lies, and not copied before


@pytest.mark.parametrize("relu", [False, True])
def test_torch_knows_what_the_operations_give(relu):
    x = torch.randn(2, 4, 6, 5)
    values, places = pool_pixels(x, relu)
    torch.library.opcheck(pool_pixels, (x, relu))
    torch.library.opcheck(take_pixels, (x, places))
    torch.library.opcheck(put_pixels, (values, places))


def check_kernels(device: str) -> None:
    for few in (False, True):
        for shape in ((2, 3, 6, 4, 5), (1, 2, 2, 1), (3, 8, 12, 40), (2, 4, 2, 300)):
            torch.manual_seed(0)
            x = torch.randn(*shape, dtype=torch.float64, device=device)
            x = x.round() if few else x
            x[(0,) * len(shape)] = float("nan")
            for relu in (False, True):
                wanted, at = pool_pixels(x, relu)
                values, places = triton_pooling().pool(x.float(), relu)
                assert torch.equal(places, at)
                assert torch.equal(values.nan_to_num(9), wanted.float().nan_to_num(9))
                found = triton_pooling().take(x.float(), at)
                assert torch.equal(found.nan_to_num(9), take_pixels(x, at).float().nan_to_num(9))
                first = wanted.movedim(-1, -3).contiguous().movedim(-3, -1)  # channels first in memory
                for given in (wanted, first):
                    found = triton_pooling().put(given.float(), at)
                    assert torch.equal(found.nan_to_num(9), put_pixels(wanted, at).float().nan_to_num(9))


def triton_pooling():
    from consilience.kernels import triton_pooling

    return triton_pooling


def test_kernels_compute_what_torch_computes(interpreted):
    interpreted("from tests.kernels.test_pooling import check_kernels; check_kernels('cpu')")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_on_a_gpu():
    check_kernels("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_images_of_gpus_with_channels_last_are_pooled_so():
    x = torch.randn(2, 3, 6, 4, 5, device="cuda").movedim(-1, -3)
    for images, own in ((x, True), (x.contiguous(), False)):
        program = record(lambda given: (torch.func.vmap(Pooling.of(nn.MaxPool2d(2)))(given),), [images])
        assert own == any("pool_pixels" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize(
    ("x", "own"),
    [
        (batch_last(5, 3, 8, 6), True),
        (batch_last(5, 3, 8, 6).contiguous(), False),
        (batch_last(5, 3, 7, 6), False),  # an odd row is left out
        (torch.randn(3, 8, 8), False),  # an image without a batch
    ],
)
def test_other_images_are_left_to_torch(x, own):
    program = record(lambda given: (Pooling.of(nn.MaxPool2d(2))(given),), [x])
    assert_close(program(x)[0], F.max_pool2d(x, 2))
    assert own == any("maximum" in str(node.target) for node in program.graph.nodes)


def test_only_maxima_of_two_by_two_neighbours_are_replaced():
    layers = nn.Sequential(
        nn.MaxPool2d(2),
        nn.MaxPool2d((2, 2), stride=(2, 2)),
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.Flatten(),
    )
    assert [isinstance(layer, Pooling) for layer in convert(layers)] == [True, True, *[False] * 6]


def test_layers_are_free_in_their_layout_where_only_layers_read_them():
    def stage() -> list[nn.Module]:
        return [nn.Conv2d(4, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]

    inner = nn.Sequential(*stage())  # nobody knows who reads it
    layers = convert(nn.Sequential(inner, *stage(), nn.AvgPool2d(2), *stage(), nn.Flatten(), *stage()))
    convolutions = [layer.free for layer in layers.modules() if isinstance(layer, nn.Conv2d)]
    assert convolutions == [False, False, True, False]
    pools = [isinstance(one, Pooling) for one in layers.modules() if isinstance(one, nn.MaxPool2d)]
    assert pools == [False, False, True, False]


def test_relus_beside_pooling_are_part_of_it():
    relu = nn.ReLU()  # one layer in three places
    plain = nn.Sequential(
        nn.Conv2d(1, 2, 3), relu, nn.MaxPool2d(2), nn.Conv2d(2, 2, 2), nn.MaxPool2d(2), relu,
        nn.Flatten(), nn.Linear(18, 4), relu,
    )  # fmt: skip
    layers = convert(plain)
    assert [layer.relu for layer in layers if isinstance(layer, Pooling)] == [True, True]
    assert [type(layer) for layer in layers].count(nn.ReLU) == 1
    x = torch.randn(3, 1, 16, 16)
    assert torch.equal(layers(x), plain(x))
    for found, wanted in zip(
        *(torch.autograd.grad(one(x).sum(), one.parameters()) for one in (layers, plain)), strict=True
    ):
        assert_close(found, wanted)
