"""Recorded programs compute what the function computes, and nothing that nobody reads."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience.engine.executors.program import Recorder, overwriting, peak_bytes, record

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2) - 2


def operations(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def gradient(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    def loss(a: torch.Tensor) -> torch.Tensor:
        return (a @ b).sin().sum() + 0.5 * (a * a).sum()

    return [torch.func.grad(loss)(a), a.max(1).indices]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_program_is_its_function_on_other_tensors(mapped):
    function = torch.func.vmap(gradient) if mapped else gradient
    examples = [torch.stack([x, x + 1]) if mapped else x for x in (A, B)]
    program = record(function, examples)
    others = [torch.randn_like(x) for x in examples]
    assert_close(list(program(*others)), list(function(*others)))


def test_what_nobody_reads_is_not_computed():
    program = record(lambda a, b: gradient(a, b)[:1], [A, B])
    found = operations(program)
    assert not any("sin.default" in one or "sum" in one or "max" in one for one in found), found
    assert any("cos" in one for one in found)


def test_tensors_from_elsewhere_are_constants():
    offset = torch.ones(3)
    program = record(lambda a: [a + offset], [A])
    assert_close(program(B.T.contiguous())[0], B.T + 1)


def test_a_program_can_write_over_its_arguments():
    program = overwriting(record(lambda a, b, c: [b + c, a.clone(), c], [A, A, A]), [0, 1, 2])
    a, b, c = torch.full((2, 3), 1.0), torch.full((2, 3), 2.0), torch.full((2, 3), 3.0)
    program(a, b, c)
    assert [value.unique().tolist() for value in (a, b, c)] == [[5.0], [1.0], [3.0]]


def test_arguments_that_trade_places():
    program = overwriting(record(lambda a, b: [b, a], [A, A]), [0, 1])
    a, b = torch.zeros(2, 3), torch.ones(2, 3)
    program(a, b)
    assert (a == 1).all()
    assert (b == 0).all()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a: [a * a.sum().item()], r"\.item\(\)"),
        (lambda a: [a + torch.rand(3)], "randomness of its own"),
        (lambda a: [a if a.sum() > 0 else -a], r"\.item\(\)"),
    ],
)
def test_programs_must_not_depend_on_data_or_chance(function, reason):
    with pytest.raises(RuntimeError, match=reason):
        record(function, [A])


def test_a_number_that_follows_from_constants_may_be_read():
    mask = torch.ones(3, 3).tril()

    def function(a):
        causal = bool((mask == torch.ones(3, 3).tril()).all())
        return [a @ mask if causal else a, a * int(mask.sum())]

    program = record(function, [torch.ones(2, 3)])
    given = torch.arange(6.0).reshape(2, 3)
    assert_close(list(program(given)), [given @ mask, 6 * given])
    with pytest.raises(RuntimeError, match="item"):
        record(lambda a: [a * (mask + a).sum().item()], [torch.ones(3, 3)])
    with pytest.raises(RuntimeError, match="item"):
        record(lambda a: [a * torch.zeros(3).copy_(a).sum().item()], [torch.ones(3)])


def test_recording_keeps_no_tensor_alive():
    alive = []

    def chain(a: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for _ in range(20):
            a = a.sin() + 1
            made.append(weakref.ref(a))
        alive.extend(one() is not None for one in made)
        return [a]

    program = record(chain, [A])
    assert alive == [False] * 19 + [True]
    assert_close(program(B.T.contiguous())[0], chain(B.T)[0])


def test_a_tensor_at_the_address_of_another_is_not_taken_for_it():
    def function(a: torch.Tensor) -> list[torch.Tensor]:
        total = a.sum()
        for number in range(20):  # each of these may lie where the one before it lay, or be its object
            total = total + (a * number).t().sum() * (a.t() - number).t().max()
        return [total]

    program, other = record(function, [A]), torch.randn(2, 3)
    assert_close(program(other), tuple(function(other)))


def test_the_peak_is_what_is_needed_at_a_time():
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        a = x + 1  # made and gone
        b = (a * 2).view(-1)  # a and what b shows
        del a
        c = b.reshape(10, 10).t() + 3  # b and c
        return [c.sum()]

    x = torch.zeros(10, 10, dtype=torch.float64)
    assert peak_bytes(record(function, [x])) == 2 * x.nbytes
    assert peak_bytes(record(lambda x: [x.t()], [x])) == 0


def test_what_is_entered_is_one_operation_and_not_looked_into():
    class Inside(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            Inside.calls += 1
            return [torch.tensor(x.sum().item()), x * Inside.calls]  # what could not be recorded

    inside = Inside()
    x = torch.arange(3.0)
    recorder = Recorder([x])
    (result,) = recorder.run(lambda x: [recorder.enter(inside, [x + 1])[1] * 2])
    assert result.tolist() == [2, 4, 6]
    module = recorder.module()
    assert [node.op for node in module.graph.nodes].count("call_module") == 1
    assert module.forward(x)[0].tolist() == [4, 8, 12]
