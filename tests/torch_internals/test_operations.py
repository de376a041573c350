"""Operations on their way to torch's kernels: which arrive, and what they say about themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.nn import functional as F

from consilience import torch_internals as internals
from consilience.engine.executors.program import record

ATEN = torch.ops.aten


class Log:
    """The operations of a function, and the tensors that come to them without having been given or made."""

    def __init__(self, function: Callable[..., Any], *given: Tensor) -> None:
        self.operations: list[str] = []
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.strangers: list[str] = []
        self._known: list[Tensor] = list(given)
        with internals.every_operation(self._operate):
            self.result = function(*given)

    def _operate(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.operations.append(str(operation))
        self.calls.append((operation, args, kwargs))
        tensors = [one for one in internals.leaves((args, kwargs)) if isinstance(one, Tensor)]
        if not all(any(one is known for known in self._known) for one in tensors):
            self.strangers.append(str(operation))
        result = operation(*args, **kwargs)
        self._known += [one for one in internals.leaves(result) if isinstance(one, Tensor)]
        return result


def sine(x: Tensor) -> Tensor:
    """Whose slope reaches the kernels by two operations that do not occur on the way forth."""
    return torch.func.grad(lambda x: x.sin().sum())(x).mul_(2)


SINE = ["aten.sin.default", "aten.cos.default", "aten.mul.Tensor", "aten.mul_.Tensor"]


@pytest.mark.parametrize("mapped", [False, True])
def test_operations_of_both_passes_arrive_and_those_that_write(mapped, same):
    x = torch.randn(4, 3)
    log = Log(torch.func.vmap(sine) if mapped else sine, x)
    found = [one for one in log.operations if one in SINE]
    assert found == SINE, (
        f"torch changed: a dispatch mode sees {log.operations}, of which {SINE} was expected"
    )
    same(log.result, 2 * x.cos(), "what operations give within a dispatch mode")
    shapes = {tuple(args[0].shape) for operation, args, _ in log.calls if str(operation) in SINE}
    assert shapes == {(4, 3)}, f"torch changed: under vmap, operations arrive for {shapes}, not for all lanes"


def test_what_is_called_for_an_operation_does_not_arrive_again():
    log = Log(lambda x: x + 1, torch.ones(2))
    assert log.operations == ["aten.add.Tensor"], "torch changed: a dispatch mode sees what it calls itself"


SAVING: dict[str, Callable[[Tensor], Tensor]] = {
    "result": lambda x: x.tanh() * x.exp() * x.sigmoid(),
    "softmax": lambda x: F.softmax(x, 1) * F.log_softmax(x, 0),
    "arguments": lambda x: (x @ x.T).sin() * x.square().sum(),
    "indices": lambda x: x.max(1).values + x.sort(1).values[:, 0],
    "loss": lambda x: F.cross_entropy(x, torch.arange(3), reduction="none"),
    "normalised": lambda x: F.layer_norm(x, (3,)) * internals.batch_normalised(x, *x, x[0], 0.1, 1e-5)[0],
    "twice": lambda x: torch.func.grad(lambda x: (x.tanh() * x.exp()).sum())(x).sigmoid(),
    "written": lambda x: torch.zeros_like(x).add_(x.exp()).mul_(x) * x.clone().fill_diagonal_(2),
}


def by_autograd(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @torch.enable_grad()
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x)[0]

    return gradient


@pytest.mark.parametrize("way", ["func", "vmap", "autograd"])
@pytest.mark.parametrize("kind", SAVING)
def test_every_tensor_that_arrives_was_given_or_made_before(kind, way, same):
    """Else the recorder would take it for a constant, and numbers of one batch would be used for all."""
    gradient = (by_autograd if way == "autograd" else torch.func.grad)(lambda x: SAVING[kind](x).sum())
    function = torch.func.vmap(gradient) if way == "vmap" else gradient
    shape = (2, 3, 3) if way == "vmap" else (3, 3)
    example, other = torch.randn(shape), torch.randn(shape)
    log = Log(function, example)
    assert not log.strangers, (
        f"torch changed: to {log.strangers} come tensors that no operation seems to make"
    )
    program = record(lambda x: [function(x)], [example])
    same(program(other)[0], function(other), "a recorded program is no longer its function")


def test_private_operations_are_views_and_copies(device, same):
    x = torch.randn(2, 3, 4, device=device)
    log = Log(lambda x: x.mT @ torch.ones(3, 5, device=device), x)
    assert str(internals.unsafe_view) in log.operations, f"torch changed: matmul is now {log.operations}"
    flat = internals.unsafe_view(x, [6, 4])
    assert flat.data_ptr() == x.data_ptr(), "torch changed: _unsafe_view copies"
    same(flat, x.view(6, 4), "what _unsafe_view gives")
    log = Log(lambda x: x.to(torch.float64), x)
    assert log.operations == [str(internals.to_copy)], f"torch changed: Tensor.to is now {log.operations}"
    same(torch.empty_like(log.result).copy_(x), log.result, "_to_copy is no copy", rtol=0, atol=0)


S, V = torch.randn(3, 3), torch.randn(2, 3, 3)
ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    ATEN.mul.Scalar: (S, 2.0),
    ATEN.addcmul.default: (S, S.T, S),
    ATEN.gt.Scalar: (S, 0.1),
    ATEN.where.self: (S > 0, S, S.T),
    ATEN.sum.dim_IntList: (V, [0, 2]),
    ATEN.bmm.default: (V, V),
    ATEN.addmm.default: (S[0], S, S),
    ATEN.baddbmm.default: (S[:, :1], V, V),
    ATEN.addmm_.default: (S, S, S),
}


@pytest.mark.parametrize("operation", internals.QUICK, ids=str)
def test_quick_functions_are_their_operations(operation, same):
    function = internals.QUICK[operation]
    args = [one.clone() if isinstance(one, Tensor) else one for one in ARGUMENTS.get(operation, (S, S.T))]
    broken = f"{function.__name__} is no longer {operation}"
    if operation in (ATEN.sub.out, ATEN.gt.Tensor_out):
        wanted = operation(*args, out=torch.empty(3, 3))
    elif str(operation).split(".")[1].endswith("_"):
        wanted = operation(args[0].clone(), *args[1:])
        same(function(*args), wanted, broken, rtol=0, atol=0)
        same(args[0], wanted, broken, rtol=0, atol=0)
        return
    else:
        wanted = operation(*args)
    place = torch.full_like(wanted, 7)
    assert function(*args, out=place) is place, f"torch changed: {function.__name__} and its `out`"
    same(place, wanted, broken, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "random"),
    [
        (lambda x: torch.rand(3), True),
        (lambda x: torch.randint(0, 9, (3,)), True),
        (lambda x: torch.randperm(3), True),
        (F.dropout, True),
        (lambda x: x.clone().normal_(), True),
        (lambda x: torch.multinomial(x, 1), True),
        (lambda x: x.clone().zero_().sin(), False),
        (lambda x: F.dropout(x, training=False), False),
        (lambda x: torch.empty_like(x).sort(), False),
    ],
)
def test_what_draws_randomness_says_so(function, random):
    x, before = torch.rand(2, 3), torch.get_rng_state()
    log = Log(function, x)
    assert torch.equal(before, torch.get_rng_state()) != random, "the test is wrong"
    found = any(internals.draws_randomness(operation) for operation, _, _ in log.calls)
    assert found == random, f"torch changed: the tags of {log.operations} about randomness"


@pytest.mark.parametrize(
    ("function", "fixed"),
    [
        (torch.nonzero, False),
        (torch.unique, False),
        (lambda x: x.masked_select(x > 0), False),
        (lambda x: x.clone().t_(), False),
        (lambda x: x.clone().unsqueeze_(0), False),
        (lambda x: x.clone().squeeze_(0), False),
        (lambda x: x.clone().add_(1), True),
        (lambda x: x.gather(1, x.argsort(1)).split(1), True),
        (lambda x: F.log_softmax(x @ x, 1).unsqueeze(0), True),
    ],
)
def test_what_has_no_fixed_form_says_so(function, fixed):
    log = Log(function, torch.randn(3, 3))
    found = all(internals.has_fixed_form(operation) for operation, _, _ in log.calls)
    assert found == fixed, f"torch changed: the tags of {log.operations} about shapes"


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        (lambda x, y, z: y.add_(x), "y"),
        (lambda x, y, z: y[1:].mT.copy_(x[1:].mT), "y"),
        (lambda x, y, z: torch.sub(x, z, out=y), "y"),
        (lambda x, y, z: torch.linalg.qr(x, out=(y, z)), "yz"),
        (lambda x, y, z: internals.copy_all([y[0], z[0]], [x[0], x[1]]), "yz"),
        (lambda x, y, z: y.index_put_((torch.tensor([1]),), z[0]).fill_diagonal_(9), "y"),
        (lambda x, y, z: torch.addmm(x, y, z).view(9)[1:].sort(), ""),
        (lambda x, y, z: F.cross_entropy(F.layer_norm(x @ y, (3,), z[0]), torch.arange(3)), ""),
    ],
)
def test_schemas_say_what_is_written(function, changed):
    given = {name: torch.randn(3, 3) for name in "xyz"}
    before = {name: value.clone() for name, value in given.items()}
    log = Log(function, *given.values())
    assert {name for name in given if not torch.equal(given[name], before[name])} == set(changed)
    places = [place.untyped_storage().data_ptr() for call in log.calls for place in internals.written(*call)]
    said = {name for name, value in given.items() if value.untyped_storage().data_ptr() in places}
    assert said == set(changed), f"torch changed: the schemas of {log.operations} say that {said} are written"
    assert internals.written(operator.getitem, (given,), {}) == []


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.sin, "sin.default"),
        (lambda x: x.mean(1), "mean.dim"),
        (lambda x: x.logsumexp(1), "logsumexp.default"),
        (lambda x: x.max(1), "max.dim"),
        (lambda x: F.log_softmax(x, 1), "_log_softmax.default"),
        (lambda x: F.nll_loss(x, torch.arange(3)), "nll_loss_forward.default"),
        (torch.func.grad(lambda x: F.log_softmax(x, 1)[0].sum()), "_log_softmax_backward_data.default"),
        (torch.func.grad(lambda x: x.relu().sum()), "threshold_backward.default"),
    ],
)
def test_variants_that_write_give_the_same(function, name, same):
    log = Log(function, torch.randn(3, 3))
    found = [call for call in log.calls if str(call[0]) == f"aten.{name}"]
    assert found, f"torch changed: {log.operations} has no {name}"
    operation, args, kwargs = found[0]
    wanted = internals.leaves(operation(*args, **kwargs))
    writing = internals.writing_variant(operation)
    assert writing is not None, f"torch changed: nothing writes the results of {name} into given memory"
    places = [torch.full_like(one, 7) for one in wanted]
    writing.call(*args, **kwargs, **dict(zip(writing.places, places, strict=True)))
    same(places, wanted, f"{writing.call} is no longer {operation}", rtol=0, atol=0)


def test_there_is_no_variant_that_would_copy():
    for operation in (ATEN.convolution.default, ATEN.split.Tensor, ATEN.add_.Tensor):
        assert internals.writing_variant(operation) is None, (
            f"torch changed: {operation} has a variant with `out`"
        )


def graph_of(*calls: tuple[Any, tuple[int, ...]]) -> Graph:
    """A graph of operations on earlier results by number: number 0 is given, the last is the result."""
    graph = Graph()
    nodes = [graph.placeholder("x")]
    for function, numbers in calls:
        nodes.append(graph.call_function(function, tuple(nodes[number] for number in numbers)))
    graph.output((nodes[-1],))
    return graph


def test_leaves_come_in_order_and_from_what_graphs_hold():
    graph = graph_of((ATEN.cat.default, (0,)))
    x, cat, _ = graph.nodes
    cat.args = ([x, None, x], {"b": 1, "a": (2, [3])})
    assert internals.leaves(cat.args) == [x, None, x, 1, 2, 3], "torch changed: how graphs hold arguments"
    doubled = internals.map_leaves(lambda one: [one], (1, [2], {"a": (3,)}))
    assert doubled == ([1], [[2]], {"a": ([3],)})
    halved = internals.map_tensors(lambda one: one / 2, [torch.ones(()), 1, (None, torch.ones(()))])
    assert halved == [0.5, 1, (None, 0.5)]
    values = {x: object(), cat: object()}
    args, kwargs = internals.map_nodes((cat.args, {"k": (cat,)}), values.__getitem__)
    assert args[0] == [values[x], None, values[x]], "torch changed: map_arg keeps no values but a graph's own"
    assert kwargs == {"k": (values[cat],)}, "torch changed: map_arg in dicts"


def test_dead_code_is_dropped_unless_it_writes(same):
    graph = graph_of(
        (ATEN.sin.default, (0,)),  # read by what writes alone
        (ATEN.clone.default, (0,)),
        (ATEN.exp.default, (0,)),  # read by nobody
        (ATEN.view_as.default, (2, 0)),
        (ATEN.copy_.default, (4, 1)),  # into a view of what comes out
        (ATEN.cos.default, (3,)),  # reads, and nobody reads it
        (ATEN.cos.default, (2,)),
    )
    internals.drop_dead_code(graph)
    left = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    wanted = ["sin.default", "clone.default", "view_as.default", "copy_.default", "cos.default"]
    assert left == [f"aten.{one}" for one in wanted], f"torch changed: of a graph, {left} is left"
    x = torch.randn(3)
    same(GraphModule(nn.Module(), graph)(x)[0], x.sin().cos(), "what a graph without dead code gives")


def test_a_program_is_the_module_of_its_graph_whose_code_is_written_late(same, monkeypatch):
    written = []
    monkeypatch.setattr(Graph, "python_code", _noted(Graph.python_code, written))
    graph = graph_of((ATEN.sin.default, (0,)), (ATEN.add.Tensor, (1, 1)))
    constants = nn.Module()
    constants.register_buffer("shift", torch.ones(3))
    with graph.inserting_before(graph.output_node()):
        shift = graph.get_attr("shift")
        graph.output_node().args = ((graph.call_function(ATEN.mul.Tensor, (list(graph.nodes)[2], shift)),),)
    program, x = internals.program_of(constants, graph), torch.randn(3)
    assert not written, "torch changed: the code of a lazy module is written at once"
    assert torch.equal(program.shift, constants.shift), "torch changed: a lazy module has no constants"
    for _ in range(2):
        same(program.forward(x)[0], GraphModule(constants, graph)(x)[0], "what a lazy module computes")
    assert isinstance(program, GraphModule)


def _noted(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return function(*args, **kwargs)

    return noted
