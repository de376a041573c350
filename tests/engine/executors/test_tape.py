"""A program in memory of its own computes what was recorded, again and again, whatever lies in there."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from consilience.engine.executors import tape
from consilience.engine.executors.program import record
from consilience.engine.executors.tape import Arena, placed
from consilience.learning.task import Task
from consilience.models import MLP, LeNet5, MnistCNN, PyTorchCNN
from consilience.types import Batch

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2) - 2


def gradients(a: Tensor, b: Tensor) -> list[Tensor]:
    return list(
        torch.func.grad(lambda x, y: ((x @ y).sin() * x.sum()).relu().logsumexp(1).sum(), (0, 1))(a, b)
    )


def views_and_changes(a: Tensor, b: Tensor) -> list[Tensor]:
    rows = a.expand(2, 2, 3).reshape(4, 3).t().unbind(0)
    total = torch.zeros_like(a[0]).as_strided((3,), (1,)).copy_(rows[0][:3]).add_(a[1], alpha=2)
    chosen = torch.where(a > 1, a.relu(), total) - a / 3
    blank = torch.empty_like(chosen)
    torch.gt(chosen[:, 1:], a[:, 1:], out=blank[:, 1:])
    torch.mul(chosen[:, 0], a[:, 0], out=blank[:, 0])
    return [torch.addmm(b[0], chosen, b), chosen.sum(), chosen.sum(0, dtype=torch.float64), blank, chosen[1:]]


def constants(a: Tensor, b: Tensor) -> list[Tensor]:
    fixed, moved = torch.arange(3.0), torch.full((3,), 2.0)
    moved.mul_(a[0]).add_(fixed)
    return [moved, a + fixed, torch.ones(2), a.new_zeros(3).add_(a[1])]


def several_results(a: Tensor, b: Tensor) -> list[Tensor]:
    values, indices = a.max(1)
    weight, bias = torch.func.grad(_normalised, (1, 2))(a[None], b[:, 0], b[:, 1])
    return [values * 2, indices, *torch.var_mean(b, 0), *a.split(1), weight, bias]


def _normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Of whose gradients one is not asked for."""
    return torch.native_batch_norm(x.mT, weight, bias, None, None, True, 0.0, 1e-5)[0].sin().sum()


def nothing_computed(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a, b.t(), a, a[:0] * 2]


def addresses(a: Tensor, b: Tensor) -> list[Tensor]:
    """Numbers of a view that count from where a tensor's memory begins."""
    first, second = a.sin(), a.cos()
    second.as_strided((2,), (2,), 1).mul_(3)
    pooled = torch.func.grad(lambda x: F.adaptive_avg_pool2d(x, 1).exp().sum())
    images = torch.stack([first, second])[None].contiguous(memory_format=torch.channels_last)
    return [first + second, pooled(images), second.clone().as_strided_scatter(a[0, :2], (2,), (3,), 1)]


def sizes_that_depend_on_values(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a.sin()[a > 0.2].sum(), (b * 2).nonzero().sum()]


def changed_views(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a.sin().t_()[0] * 2, (b + 1).unsqueeze_(0) * 3]


def given_places(a: Tensor, b: Tensor) -> list[Tensor]:
    most, where = torch.empty(2), torch.empty(2, dtype=torch.int64)
    found = torch.max(a, 1, out=(most, where))
    return [found[0] * 2, found[1] * 2, torch.sub(a, 1, out=torch.empty(0)), *torch.unbind_copy(a[:1])]


FUNCTIONS = [
    gradients,
    views_and_changes,
    constants,
    several_results,
    nothing_computed,
    addresses,
    sizes_that_depend_on_values,
    changed_views,
    given_places,
]


def spoiled(arena: Arena) -> None:
    """Nothing that an earlier run has left may matter."""
    arena.bytes(0).fill_(255)  # not a number, in all floating types


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("function", "mapped"), [*((one, False) for one in FUNCTIONS), (gradients, True), (several_results, True)]
)
def test_it_is_the_recorded_program(function, mapped, zeros):
    given = [torch.stack([x, x + 1]) if mapped else x.clone() for x in (A, B)]
    program = record(torch.func.vmap(function) if mapped else function, given)
    if zeros:  # by which many mistakes go unnoticed when the program is placed
        for value in given:
            value.zero_()
    arena = Arena()
    run = placed(program, given, arena).call
    for _ in range(3):
        for value in given:
            value.copy_(torch.randn_like(value))
        spoiled(arena)
        found = run()
        assert_close(tuple(found), tuple(program(*given)), rtol=0, atol=0)


SPECS = [MLP(hidden=(20, 20)), MnistCNN(), PyTorchCNN(), LeNet5()]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_gradients_of_models_need_no_memory_but_the_arenas(spec):
    torch.manual_seed(0)
    module = spec.build((1, 28, 28), 10)
    task = Task(module)
    model = task.weights_of(module)
    names, params = list(model["params"]), list(model["params"].values())

    def step(*tensors: Tensor) -> list[Tensor]:
        *weights, inputs, targets, weight, key = tensors

        def loss(weights: list[Tensor]) -> Tensor:
            state = {"params": dict(zip(names, weights, strict=True)), "buffers": model["buffers"]}
            batch = Batch(inputs, targets, weight, key, True)
            return F.cross_entropy(task.forward(state, batch, training=True).prediction, targets)

        return torch.func.grad(loss)(weights)

    batch = [torch.randn(8, 1, 28, 28), torch.arange(8), torch.ones(8), torch.tensor(3)]
    given, arena = [*params, *batch], Arena()
    program = record(step, given)
    run = placed(program, given, arena).call
    for round_number in range(2):
        batch[0].normal_()
        batch[3].fill_(round_number)
        spoiled(arena)
        found = run()
        assert_close(tuple(found), tuple(program(*given)), rtol=0, atol=0)
    results = [value.untyped_storage().data_ptr() for value in found]
    assert set(results) == {arena.bytes(0).untyped_storage().data_ptr()}


def test_places_are_shared_by_results_that_are_needed_at_different_times():
    def chain(a: Tensor) -> list[Tensor]:
        for _ in range(50):
            a = a.sin()
        return [a]

    x, arena = torch.randn(1000), Arena()
    placed(record(chain, [x]), [x], arena)
    assert len(arena.bytes(0)) < 2.1 * x.nbytes


def test_programs_share_an_arena():
    x, y = torch.randn(1000), torch.randn(10)
    arena = Arena()
    programs = (placed(record(lambda a: [a.sin().cos()], [v]), [v], arena) for v in (x, y))
    large, small = (program.call for program in programs)
    before = arena.bytes(0)
    for _ in range(2):
        assert_close(large()[0], x.sin().cos())
        assert_close(small()[0], y.sin().cos())
    assert arena.bytes(0) is before


def test_an_operation_that_wants_memory_of_its_own_gets_it(monkeypatch):
    monkeypatch.setattr(tape, "SMALL_BYTES", 0)
    x, weight, arena = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), Arena()
    program = record(lambda a, b: [F.conv2d(a, b).relu()], [x, weight])
    run = placed(program, [x, weight], arena).call
    for _ in range(2):
        x.normal_()
        assert_close(run()[0], F.conv2d(x, weight).relu())
    assert run()[0].untyped_storage().data_ptr() != arena.bytes(0).data_ptr()


def test_what_is_always_the_same_may_be_changed_by_who_takes_it():
    x, arena = torch.randn(3), Arena()
    program = record(lambda a: [torch.zeros(3), a + torch.ones(3)], [x])
    run = placed(program, [x], arena).call
    for _ in range(2):
        zeros, _ = run()
        assert zeros.tolist() == [0, 0, 0]
        zeros.add_(1)


def test_only_results_that_last_are_said_to():
    x, weight = torch.randn(2, 3, 200, 200), torch.randn(4, 3, 3, 3)
    for function, lasts in ((lambda a, b: [a * 2], True), (lambda a, b: [F.conv2d(a, b)], False)):
        run = placed(record(function, [x, weight]), [x, weight], Arena())
        assert (run.lasting is not None) == lasts
        assert (run.call() is run.lasting) == lasts


def test_placing_a_program_keeps_no_value_that_nobody_reads(monkeypatch):
    made: list[weakref.ref[Tensor]] = []
    most = 0
    call = tape._called

    def watched(*given):
        nonlocal most
        made.append(weakref.ref(value := call(*given)))
        most = max(most, sum(one() is not None for one in made))
        return value

    def chain(a: Tensor) -> list[Tensor]:
        for _ in range(50):
            a = a.sin()
        return [a]

    monkeypatch.setattr(tape, "_called", watched)
    x = torch.randn(10)
    run = placed(record(chain, [x]), [x], Arena())
    assert len(made) == 50
    assert most <= 2
    assert_close(run.call()[0], chain(x)[0], rtol=0, atol=0)
