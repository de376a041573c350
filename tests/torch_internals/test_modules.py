"""What modules are made of, and rules for `vmap` of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consilience import torch_internals as internals

NORMALISATIONS = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm]
OTHERS = [nn.InstanceNorm1d(3), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3), nn.LayerNorm(3), nn.RMSNorm(3)]


def test_all_batch_normalisations_are_of_one_kind():
    for kind in NORMALISATIONS:
        layer = kind(3)
        assert isinstance(layer, internals.BatchNorm), f"torch changed: {kind.__name__} is no _BatchNorm"
        names = {name for name, _ in layer.named_buffers()}
        wanted = {"running_mean", "running_var", "num_batches_tracked"}
        assert names == wanted, f"torch changed: the buffers of {kind.__name__}"
    for layer in OTHERS:
        assert not isinstance(layer, internals.BatchNorm), f"torch changed: {layer} is a _BatchNorm"


class Counter(nn.Module):
    """Changes one buffer in place and assigns two, of which one is not persistent; its weight is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.tied = self.weight
        self.register_buffer("moved", torch.zeros(()))
        self.register_buffer("assigned", torch.zeros(()))
        self.register_buffer("passing", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.moved.add_(1)
        self.assigned = self.assigned + x.sum()
        self.passing = self.passing + 2
        return self.weight * x + self.tied


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counter()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


@pytest.mark.parametrize("transformed", [False, True])
def test_buffers_that_are_assigned_anew_come_back(transformed, same):
    module, x = Outer(), torch.tensor([1.0, 2.0])
    tensors = {f"inner.{name}": torch.tensor(float(i)) for i, name in enumerate(("weight", "tied"), 2)}
    tensors |= {f"inner.{name}": torch.zeros(()) for name in ("moved", "assigned", "passing")}

    def call(tensors: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        result, after = internals.called(module, {k: v.clone() for k, v in tensors.items()}, x)
        return result.sum(), (result, after)

    if transformed:
        _, (result, after) = torch.func.grad(call, has_aux=True)(tensors)
    else:
        _, (result, after) = call(tensors)
    same(result, 2 * (2 * x + 3) + 3, "functional_call ignores tensors, or ties those that it should not")
    found = {name.removeprefix("inner."): float(value) for name, value in after.items()}
    wanted = {"weight": 2.0, "tied": 3.0, "moved": 2.0, "assigned": 15.0, "passing": 4.0}
    assert found == wanted, "torch changed: functional_call does not give back buffers that a module assigns"
    assert not any(module.inner.state_dict()[name] for name in ("moved", "assigned")), (
        "the module's own changed"
    )
    assert not module.inner.passing, "torch changed: functional_call leaves buffers in the module"


def test_a_call_does_not_write_to_what_it_is_given():
    tensors = {"assigned": torch.zeros(())}
    _, after = internals.called(Counter(), tensors, torch.ones(2))
    assert (float(tensors["assigned"]), float(after["assigned"])) == (0, 2)


class Doubled(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_layer_of_another_class_is_the_same_layer(same):
    plain, x = nn.BatchNorm1d(3), torch.randn(5, 3)
    calls: list[str] = []
    plain.register_forward_hook(lambda *_: calls.append("hook"))
    layer = internals.recast(Doubled, plain)
    changed = "torch changed: a module has more to it than its __dict__"
    assert [*map(id, layer.parameters())] == [*map(id, plain.parameters())], changed
    assert [*map(id, layer.buffers())] == [*map(id, plain.buffers())], changed
    assert list(layer.state_dict()) == list(plain.state_dict()), changed
    same(layer(x), 2 * plain(x), "a module has more to it than its __dict__")
    assert calls == ["hook", "hook"], changed
    layer.eval()
    assert (layer.training, plain.training) == (False, True), changed


@dataclass(frozen=True)
class Note:
    """Keeps what a rule for `vmap` was given."""

    calls: list[Any] = field(default_factory=list)


class Scaled(torch.autograd.Function):
    """A product that tells a note of every call of its rule."""

    @staticmethod
    def forward(note: Note, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.note = inputs[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return None, Scaled.apply(ctx.note, grad, y), Scaled.apply(ctx.note, grad, x)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], note: Note, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        note.calls.append((info.batch_size, dims, x.numpy().shape, y.numpy().shape))
        x, y = (v if d is None else v.movedim(d, 0) for v, d in zip((x, y), dims[1:], strict=True))
        return x * y, 0


def test_a_rule_for_vmap_gets_plain_stacked_tensors_and_objects_as_they_are(same):
    """So a fold leaves `vmap` with everything that the lanes need."""
    note = Note()
    x, y = torch.randn(3, 5), torch.randn(3)
    found = torch.func.vmap(lambda x: Scaled.apply(note, x, y), in_dims=1)(x)
    same(found, x.T * y, "what a rule for vmap gives")
    wanted = [(5, (None, 1, None), (3, 5), (3,))]
    assert note.calls == wanted, f"torch changed: a rule for vmap is given {note.calls}, not {wanted}"


def test_rules_for_vmap_also_serve_backward_passes(same):
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    note = Note()

    def slope(x: Tensor, y: Tensor) -> Tensor:
        return torch.func.grad(
            lambda y: torch.func.grad(lambda x: Scaled.apply(note, x, y).sin().sum())(x).sum()
        )(y)

    def wanted(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).cos() - x * y * (x * y).sin()

    same(torch.func.vmap(slope)(x, y), wanted(x, y), "gradients of second order under rules for vmap")
    assert len(note.calls) > 3, "torch changed: backward passes do without a function's rule for vmap"


@torch.library.custom_op("consilience_canary::halved", mutates_args=())
def halved(x: Tensor, times: int) -> Tensor:
    return x / 2**times


@halved.register_fake
def _(x: Tensor, times: int) -> Tensor:
    return torch.empty_like(x)


@halved.register_vmap
def _(info: Any, dims: tuple[Any, ...], x: Tensor, times: int) -> tuple[Tensor, int]:
    assert dims == (1, None), "torch changed: dims of a custom operation's rule for vmap"
    assert info.batch_size == x.shape[1], "torch changed: info of a custom operation's rule for vmap"
    return halved(x, times + 1) * 2 + 1, 1  # which tells that it was called


def test_a_custom_operation_has_a_rule_for_vmap(same):
    x = torch.randn(2, 3)
    same(torch.func.vmap(lambda x: halved(x, 1), in_dims=1)(x), x.T / 2 + 1, "register_vmap is ignored")
    seen: list[str] = []

    def operate(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(str(operation))
        return operation(*args, **kwargs)

    with internals.every_operation(operate):
        halved(x, 1)
    assert seen == ["consilience_canary.halved.default"], f"torch changed: custom operations arrive as {seen}"


def test_code_can_be_told_that_it_is_compiled():
    with internals.as_if_compiled():
        assert torch.compiler.is_compiling(), "torch changed: is_compiling() does not read its variable"
        with internals.as_if_compiled():
            pass
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()
