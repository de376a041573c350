"""Batch normalisation that skips padding, dropout that is a function of its key."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience.errors import UserError
from consilience.learning import recurrent
from consilience.learning.layers import RowBatchNorm, convert, skeleton

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


def nested() -> nn.Module:
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.2))
    return nn.ModuleDict({"body": nn.Sequential(inner, nn.Dropout1d(0.3)), "drop": nn.Dropout3d(0.4)})


@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        (nn.BatchNorm2d(3), {"": RowBatchNorm}),
        (nn.LSTM(3, 2), {"": recurrent.LSTM}),
        (nn.Linear(2, 2), {"": nn.Linear}),
        (
            nested(),
            {"body.0.1": RowBatchNorm, "body.0.2": nn.Dropout, "body.1": nn.Dropout1d, "drop": nn.Dropout3d},
        ),
    ],
    ids=["root norm", "root recurrent", "nothing", "nested"],
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


@pytest.mark.parametrize(
    ("layer", "kind"), [(nn.GRU(2, 2), recurrent.GRU), (nn.BatchNorm1d(2), RowBatchNorm)]
)
def test_convert_replaces_a_layer_in_all_its_places(layer, kind):
    converted = convert(nn.Sequential(layer, nn.Linear(2, 2), layer, nn.Sequential(layer)))
    assert isinstance(converted[0], kind)
    assert converted[0] is converted[2] is converted[3][0]


def test_convert_keeps_a_repeated_block_one_block():
    block = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    converted = convert(nn.Sequential(block, block, nn.BatchNorm1d(2)))
    assert converted[0] is converted[1]
    assert isinstance(converted[0][1], RowBatchNorm)
    assert converted[0][1] is not converted[2]


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
