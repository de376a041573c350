"""Batch normalisation that skips padding, dropout that is a function of its key."""

from __future__ import annotations

import copy
from itertools import combinations

import pytest
import torch
from scipy import stats
from torch import nn
from torch.testing import assert_close

from consilience.errors import UserError
from consilience.learning.layers import KeyedDropout, RowBatchNorm, convert, skeleton
from consilience.learning.randomness import keyed_bits

CPU = torch.device("cpu")
INPUTS = {nn.BatchNorm1d: (6, 3), nn.BatchNorm2d: (5, 3, 4, 2), nn.BatchNorm3d: (4, 3, 2, 3, 2)}


def pair_of_norms(kind: type[nn.Module], momentum: float | None, affine: bool = True):
    """torch's layer with statistics and weights of its own, and ours made from a copy of it."""
    plain = kind(3, momentum=momentum, affine=affine).double()
    plain.running_mean.normal_()
    plain.running_var.uniform_(0.5, 2)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    return plain, RowBatchNorm(copy.deepcopy(plain))


def gradients(norm: nn.Module, inputs: torch.Tensor, rows: int) -> list[torch.Tensor]:
    inputs = inputs.clone().requires_grad_()
    outputs = norm(inputs)[:rows]
    probe = torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)
    grads = torch.autograd.grad((outputs * probe).sum(), [inputs, *norm.parameters()])
    return [outputs.detach(), grads[0][:rows], *grads[1:]]


@pytest.mark.parametrize("padding", [None, 0, 3])  # None: it is known beforehand that all rows count
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("kind", INPUTS)
def test_batch_norm_equals_torchs_whatever_the_padding(kind, momentum, affine, padding):
    plain, ours = pair_of_norms(kind, momentum, affine)
    batch, *rest = INPUTS[kind]
    for mode in ("train", "train", "eval", "train"):
        plain.train(mode == "train")
        ours.train(mode == "train")
        inputs = torch.randn(batch, *rest, dtype=torch.float64)
        garbage = 1e3 * torch.randn(padding or 0, *rest, dtype=torch.float64)
        rows = [] if padding is None else [1.0] * batch + [0.0] * padding
        ours.rows = torch.tensor(rows, dtype=torch.float64)
        expected = gradients(plain, inputs, batch)
        assert_close(gradients(ours, torch.cat([inputs, garbage]), batch), expected, rtol=1e-10, atol=1e-10)
        assert_close(dict(ours.named_buffers())["running_mean"], plain.running_mean, rtol=1e-12, atol=1e-12)
        assert_close(dict(ours.named_buffers())["running_var"], plain.running_var, rtol=1e-12, atol=1e-12)
        assert ours.num_batches_tracked == plain.num_batches_tracked


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", INPUTS)
def test_gradients_of_second_order_equal_torchs(kind, known):
    plain, ours = pair_of_norms(kind, 0.1)
    inputs = torch.randn(INPUTS[kind], dtype=torch.float64)
    ours.rows = torch.ones(0 if known else len(inputs), dtype=torch.float64)

    def slopes(norm: nn.Module) -> tuple[torch.Tensor, ...]:
        given = inputs.clone().requires_grad_()
        loss = norm(given).sin().sum()
        first = torch.autograd.grad(loss, [given, norm.weight], create_graph=True)
        return torch.autograd.grad(sum(grad.cos().sum() for grad in first), [given, norm.weight])

    assert_close(slopes(ours), slopes(plain), rtol=1e-9, atol=1e-9)


def test_batch_norm_without_statistics_is_refused():
    with pytest.raises(UserError, match="running statistics"):
        convert(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)))


def dropout(
    probability: float = 0.5, *, channels: bool = False, layer: int = 1, key: int = 7
) -> KeyedDropout:
    module = KeyedDropout(probability, channels, layer)
    module.key = torch.tensor(key)
    return module


@pytest.mark.parametrize("probability", [0.01, 0.25, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_expectation(probability):
    count = 200_000
    outputs = dropout(probability)(torch.ones(count // 100, 100))
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert (outputs == 0).double().mean().item() == pytest.approx(probability, abs=5 * deviation)
    assert outputs.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - probability))
    assert outputs.unique().tolist() == pytest.approx([0, 1 / (1 - probability)])


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**62 - 1])
def test_a_mask_is_a_function_of_key_layer_and_position(key):
    inputs = torch.ones(8, 50)
    mask = dropout(key=key)(inputs)
    assert torch.equal(dropout(key=key)(inputs), mask)
    assert torch.equal(dropout(key=key)(torch.ones(20, 50))[:8], mask)
    others = [dropout(key=key ^ 1), dropout(key=key ^ (1 << 40)), dropout(key=key, layer=2)]
    for other in others:
        agreement = (other(inputs) == mask).double().mean().item()
        assert agreement == pytest.approx(
            0.5, abs=0.125
        )  # 5 standard deviations: unrelated, not just different


def test_a_layer_that_is_used_again_draws_again():
    module, inputs = dropout(), torch.ones(8, 50)
    masks = [module(inputs) for _ in range(3)]
    for one, other in combinations(masks, 2):
        assert (one == other).double().mean().item() == pytest.approx(0.5, abs=0.125)
    module.calls = 0  # as at the start of every forward pass of a model
    assert torch.equal(module(inputs), masks[0])


def test_dropout_reads_no_global_generator():
    state = torch.get_rng_state()
    first = dropout()(torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    assert torch.equal(dropout()(torch.ones(4, 4)), first)


def test_lanes_under_vmap_have_the_masks_they_have_alone():
    inputs, keys = torch.ones(3, 4, 5), torch.tensor([3, 2**40, 3])

    def one(key: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(dropout(), {"key": key}, (x,))

    together = torch.func.vmap(one)(keys, inputs)
    assert torch.equal(together, torch.stack([one(*lane) for lane in zip(keys, inputs, strict=True)]))
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("shape", [(40, 30, 4), (40, 30, 4, 3), (40, 30, 2, 2, 2)])
def test_channel_dropout_drops_whole_channels(shape):
    dropped = (dropout(0.3, channels=True)(torch.ones(shape)) == 0).flatten(2)
    assert torch.equal(dropped.any(2), dropped.all(2))
    assert dropped.double().mean().item() == pytest.approx(0.3, abs=0.07)


@pytest.mark.parametrize(
    ("probability", "mode", "factor"), [(0.5, "eval", 1), (0.0, "train", 1), (1.0, "train", 0)]
)
def test_dropout_without_chance(probability, mode, factor):
    inputs = torch.randn(5, 6)
    assert torch.equal(dropout(probability).train(mode == "train")(inputs), factor * inputs)


STREAMS = {
    "positions": lambda: keyed_bits(torch.tensor(5), 1, (2**16,), CPU),
    "positions, large key": lambda: keyed_bits(torch.tensor(2**62 - 3), 3, (2**16,), CPU),
    "keys": lambda: torch.func.vmap(lambda key: keyed_bits(key, 1, (1,), CPU))(torch.arange(2**16)),
    "high keys": lambda: torch.func.vmap(lambda key: keyed_bits(key, 1, (1,), CPU))(
        torch.arange(2**16) << 31
    ),
    "layers": lambda: torch.cat([keyed_bits(torch.tensor(5), layer, (1,), CPU) for layer in range(2**13)]),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_keyed_bits_are_uniform_and_neighbours_unrelated(stream):
    bits = STREAMS[stream]().flatten()
    assert bits.dtype == torch.int32
    top = (bits >> 24) + 128
    neighbours = (top[0::2] >> 4) * 16 + (top[1::2] >> 4)
    for sample in (top, (bits >> 2) & 255, neighbours):
        assert stats.chisquare(torch.bincount(sample, minlength=256).numpy()).pvalue > 1e-4


def nested() -> nn.Module:
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.2))
    return nn.ModuleDict({"body": nn.Sequential(inner, nn.Dropout1d(0.3)), "drop": nn.Dropout3d(0.4)})


@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        (nn.BatchNorm2d(3), {"": RowBatchNorm}),
        (nn.Dropout(0.5), {"": KeyedDropout}),
        (nn.Linear(2, 2), {"": nn.Linear}),
        (
            nested(),
            {
                "body.0.1": RowBatchNorm,
                "body.0.2": KeyedDropout,
                "body.1": KeyedDropout,
                "drop": KeyedDropout,
            },
        ),
    ],
    ids=["root norm", "root dropout", "nothing", "nested"],
)
def test_convert_replaces_and_leaves_the_original_alone(module, kinds):
    before, held = repr(module), {name: value.clone() for name, value in module.state_dict().items()}
    converted = convert(module)
    assert {name: type(converted.get_submodule(name)) for name in kinds} == kinds
    assert [name for name, _ in converted.named_parameters()] == [
        name for name, _ in module.named_parameters()
    ]
    assert_close(converted.state_dict(), held, rtol=0, atol=0)
    for value in converted.state_dict().values():
        value.add_(1)
    assert repr(module) == before
    assert_close(dict(module.state_dict()), held, rtol=0, atol=0)


def test_convert_keeps_rates_kinds_and_numbers_of_dropout():
    found = [m for m in convert(nested()).modules() if isinstance(m, KeyedDropout)]
    assert {m.probability: m.whole_channels for m in found} == {0.2: False, 0.3: True, 0.4: True}
    assert len({m.layer for m in found}) == 3


@pytest.mark.parametrize(
    ("layer", "kind"), [(nn.Dropout(0.5), KeyedDropout), (nn.BatchNorm1d(2), RowBatchNorm)]
)
def test_convert_replaces_a_layer_in_all_its_places(layer, kind):
    converted = convert(nn.Sequential(layer, nn.Linear(2, 2), layer, nn.Sequential(layer)))
    assert isinstance(converted[0], kind)
    assert converted[0] is converted[2] is converted[3][0]


def test_convert_keeps_a_repeated_block_one_block():
    block = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    converted = convert(nn.Sequential(block, block, nn.Dropout(0.5)))
    assert converted[0] is converted[1]
    assert isinstance(converted[0][1], KeyedDropout)
    assert converted[0][1].layer != converted[2].layer


def test_a_skeleton_has_structure_but_no_numbers():
    module = nested()
    module["tied"] = nn.Linear(3, 3)
    module["tied"].weight = module["body"][0][0].weight
    module["body"][0][0].bias.requires_grad_(False)
    held = {name: value.clone() for name, value in module.state_dict().items()}
    bare = skeleton(module)
    assert repr(bare) == repr(module)
    tensors, bare_tensors = (
        dict([*m.named_parameters(remove_duplicate=False), *m.named_buffers()]) for m in (module, bare)
    )
    assert list(bare_tensors) == list(tensors)
    for name, value in bare_tensors.items():
        assert value.is_meta
        assert (value.shape, value.dtype) == (tensors[name].shape, tensors[name].dtype)
        assert value.requires_grad == tensors[name].requires_grad
    assert bare["tied"].weight is bare["body"][0][0].weight
    assert_close(dict(module.state_dict()), held, rtol=0, atol=0)
