"""Everything of torch that this library uses though torch does not promise it.

It is here and nowhere else, so that a new release of torch is a matter of one file. Every entry says what is
relied on and what torch promises, and the tests in `tests/torch_internals` compare each with what torch
documents, so that a change there is noticed by name and not by wrong numbers. What is called at every step is
an alias: a function of ours around it would cost as much as the smaller kernels.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.func import functional_call
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

Layer = TypeVar("Layer", bound=nn.Module)

_ATEN = torch.ops.aten

# The compiler, which takes a second to import


class _Unloaded:
    """Stands for a module until somebody imports it, or asks for more than is known of it."""

    def __init__(self, module: str, **known: object) -> None:
        vars(self).update(known, module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(vars(self)["module"]), name)


if "torch._dynamo" not in sys.modules:
    # Relied on: gradients of `torch.func` ask it for one thing, a context without compiled autograd, which
    # nobody can have switched on before; an import puts the module in this place. Promised: nothing.
    _idle = _Unloaded("torch._dynamo.compiled_autograd", _disable=nullcontext)
    torch._dynamo = _Unloaded("torch._dynamo", compiled_autograd=_idle)  # type: ignore[assignment]

# Operations, as they are on their way to torch's kernels


Operate = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""A function that gives the result of an operation on some arguments."""


def every_operation(operate: Operate) -> AbstractContextManager[object]:
    """A context in which every operation that reaches torch's kernels is left to a function.

    Those that the function itself calls are not.

    Relied on: those of backward passes and those that write arrive, too. Transforms of `torch.func` are done
    by then: tensors are plain ones, with the axis of a `vmap`. A tensor that somebody holds is the same
    object each time, and what a backward pass keeps is one of these or a view made by an operation.
    Promised: the notes on extending torch name the class; its module is private.
    """
    return _Mode(operate)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, operate: Operate) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operate = operate

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch's compiler is imported, only to be told that it has nothing to do here."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.operate(function, tuple(args), kwargs or {})


unsafe_view = _ATEN._unsafe_view.default
"""What `matmul` and `reshape` call for a view that nobody else has.

Relied on: it computes nothing and its result lies where its argument does. Promised: nothing.
"""

to_copy = _ATEN._to_copy.default
"""What `Tensor.to` calls for a copy of another type, layout or device.

Relied on: `copy_` of its first argument does the same to memory of the result's kind. Promised: nothing.
"""

QUICK: Mapping[Any, Callable[..., Any]] = {
    _ATEN.add.Tensor: torch.add,
    _ATEN.sub.Tensor: torch.sub,
    _ATEN.mul.Tensor: torch.mul,
    _ATEN.mul.Scalar: torch.mul,
    _ATEN.div.Tensor: torch.div,
    _ATEN.addcmul.default: torch.addcmul,
    _ATEN.maximum.default: torch.maximum,
    _ATEN.gt.Scalar: torch.gt,
    _ATEN.where.self: torch.where,
    _ATEN.sum.dim_IntList: torch.sum,
    _ATEN.mm.default: torch.mm,
    _ATEN.bmm.default: torch.bmm,
    _ATEN.addmm.default: torch.addmm,
    _ATEN.baddbmm.default: torch.baddbmm,
    # those that write anyway
    _ATEN.sub.out: torch.sub,
    _ATEN.gt.Tensor_out: torch.gt,
    _ATEN.copy_.default: Tensor.copy_,
    _ATEN.add_.Tensor: Tensor.add_,
    _ATEN.mul_.Tensor: Tensor.mul_,
    _ATEN.addmm_.default: Tensor.addmm_,
}
"""Torch's Python functions, which take half as long to call as the operations they stand for.

Relied on: they take an operation's arguments as it does, and an `out` unless it writes anyway. Promised: the
functions are documented, that they are these operations is not, nor the `out` of `torch.sum`.
"""


def draws_randomness(operation: object) -> bool:
    """Whether an operation draws from torch's generators.

    Relied on: it then has the tag. Promised: the meaning of `torch.Tag`, not which operations have which.
    """
    return torch.Tag.nondeterministic_seeded in _tags(operation)


def has_fixed_form(operation: object) -> bool:
    """Whether results have shapes that follow from those of the arguments, which keep their own.

    Relied on and promised: as for `draws_randomness`.
    """
    return _tags(operation).isdisjoint((torch.Tag.dynamic_output_shape, torch.Tag.inplace_view))


@cache
def _tags(operation: object) -> frozenset[torch.Tag]:
    return frozenset(getattr(operation, "tags", ()))


def written(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call changes: the leaves of those arguments that an operation writes to.

    Other functions than torch's operations change nothing here.

    Relied on: schemas name all arguments in the order in which they are taken, and say of each that is
    written to, `out` among them, that it is. (That of batch normalisation is silent about running
    statistics; ours hands it none.) Promised: the notation of schemas, not a way to read them.
    """
    if not isinstance(function, OpOverload):
        return []
    found: list[Any] = []
    for place, name in _changed(function):
        found += leaves(args[place] if place < len(args) else kwargs.get(name))
    return found


@cache
def _changed(operation: OpOverload) -> list[tuple[int, str]]:
    """The places and names of the arguments that an operation writes to."""
    arguments = enumerate(operation._schema.arguments)
    return [(place, one.name) for place, one in arguments if one.alias_info and one.alias_info.is_write]


class Writing(NamedTuple):
    """An operation that takes the places of its results as arguments."""

    call: Callable[..., Any]
    places: tuple[str, ...]
    """The names of those arguments, in the order of the results."""


@cache
def writing_variant(operation: Any) -> Writing | None:
    """The operation that writes what another one returns, if torch has one that needs no other memory.

    Relied on: overloads of one name that take the same other arguments compute the same, and those without
    the tag `generated`, which means a copy, write straight into their places. Promised: nothing.
    """

    def wanted(other: Any) -> list[tuple[str, str]]:
        return [(one.name, str(one.type)) for one in other._schema.arguments if not one.is_out]

    packet = operation._overloadpacket
    for other in (getattr(packet, name) for name in packet.overloads()):
        outs = [one for one in other._schema.arguments if one.is_out]
        plain = all(str(one.type) == "Tensor" for one in outs)
        direct = torch.Tag.generated not in _tags(other)
        if other is not operation and wanted(other) == wanted(operation) and plain and direct:
            return Writing(other, tuple(one.name for one in outs))
    return None


# Graphs of operations, and nested values


def leaves(value: object) -> list[Any]:
    """All that lies in nested tuples, lists and dicts, in order.

    Torch's private functions take several times as long, for every operation that is recorded.

    Relied on: what `torch.fx` holds arguments in is of these types, too. Promised: nothing.
    """
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple | list) else [value]


def map_leaves(function: Callable[[Any], object], value: Any) -> Any:
    """A function of every leaf, in the same nesting. Relied on and promised: as for `leaves`."""
    if isinstance(value, tuple):
        return tuple(map_leaves(function, part) for part in value)
    if isinstance(value, list):
        return [map_leaves(function, part) for part in value]
    if isinstance(value, dict):
        return {name: map_leaves(function, part) for name, part in value.items()}
    return function(value)


map_nodes = map_arg
"""Gives the arguments of a node of a graph, with a function's values in place of the nodes among them.

Relied on: values need not be what a graph can hold. Promised: that the function stays, as `torch.fx` marks
it, though no page describes it.
"""


def map_tensors(function: Callable[[Tensor], object], value: Any) -> Any:
    """The value with a function of each tensor in place of it; relied on and promised: as for `leaves`."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def drop_dead_code(graph: Graph, kept: Collection[Node] = ()) -> None:
    """Take operations out of a graph whose results nobody reads, but for those that write or are to be kept.

    Relied on: what schemas say about writing, as for `written`. Promised: `Node.is_impure`, which torch's own
    `eliminate_dead_code` asks of all nodes, also where somebody reads them.
    """
    for node in reversed(graph.nodes):
        dead = not (node.users or node in kept or node.is_impure())
        if dead and not written(node.target, node.args, node.kwargs):
            graph.erase_node(node)


def program_of(constants: nn.Module, graph: Graph) -> GraphModule:
    """A graph with its constants as a module, whose Python code is written when it is first called.

    To write it takes half as long as to record the graph, and of most graphs nobody ever calls it.

    Relied on: it is `torch.fx.GraphModule` in all else. Promised: nothing.
    """
    return _LazyGraphModule(constants, graph)


# Kernels

fused_sgd = torch._fused_sgd_
"""One step of `torch.optim.SGD`, written over parameters and velocities in one pass over memory.

Relied on: with a dampening of 0 and velocities from the start (or none, without momentum) it does what
`torch.optim.SGD` does; numbers are taken in the order of memory, so that tensors which belong together must
lie alike. Promised: what `torch.optim.SGD(fused=True)` does, which calls it.
"""

copy_all, add_all, scale_all = torch._foreach_copy_, torch._foreach_add_, torch._foreach_mul_
"""`copy_`, `add_` and (by a number) `mul_` for tensors of a list, rounded as by these. Promised: nothing."""


def batch_normalised(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch normalised, and the running mean and variance of each channel after it.

    Relied on: it is `F.batch_norm` in training, can be differentiated, and statistics have the type of the
    weights where images are rounded. Promised: nothing; under `vmap` one lane is taken after the other.
    """
    known = mean.detach(), variance.detach()
    found = _ATEN._native_batch_norm_legit_functional(x, weight, bias, *known, True, momentum, eps)
    return found[0], found[3], found[4]


def autocast_type(device: str) -> torch.dtype | None:
    """The type that autocast rounds to on a kind of device, or None outside of it.

    Relied on: both functions ask about the innermost `torch.autocast`. Promised: nothing.
    """
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


cudnn_flags = torch.backends.cudnn.flags
"""Sets what `torch.backends.cudnn` documents, within a `with`, and sets it back. Promised: nothing."""


@contextmanager
def memory_left_as_it_is() -> Iterator[None]:
    """A context in which deterministic algorithms do not fill new memory first.

    Relied on and promised: `fill_uninitialized_memory` can be set, though type checkers do not know it.
    """
    memory: Any = torch.utils.deterministic
    before = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = before


def in_memory(value: Tensor) -> Tensor:
    """The same value, which torch.compile computes once and writes once.

    Left alone it computes a value anew wherever that is read (for pooling from four times as many numbers),
    and writes a copy for each operation that it does not know. Relied on: what a view by strides is taken of
    lies in memory, in the order in which it was recorded. Promised: the value only.
    """
    return value.as_strided(value.shape, value.stride())


weight_normalised = torch._weight_norm
"""What `torch.nn.utils.parametrizations.weight_norm` calls.

Relied on: it gives lengths times directions of norm 1 over all axes but the one given. Promised: nothing.
"""

# Modules

BatchNorm = _BatchNorm
"""What all of torch's batch normalisations are, and no other of its layers. Promised: nothing."""


def called(
    module: nn.Module, tensors: Mapping[str, Tensor], *inputs: Tensor
) -> tuple[Any, dict[str, Tensor]]:
    """What a module gives with some tensors in place of its own, and these tensors after the call.

    The module keeps its own, and the caller's dict stays as it is.

    Relied on: buffers that the module assigns anew come back, whatever they are called and even if they are
    not persistent. Promised: by an example in the notes on `torch.func.functional_call`.
    """
    after = dict(tensors)
    result = functional_call(module, after, inputs, tie_weights=False)
    return result, after


@contextmanager
def as_if_compiled() -> Iterator[None]:
    """A context in which `torch.compiler.is_compiling()` says yes.

    Code that must not look at numbers then does not: of a mask, say, whether anything is masked.

    Relied on: the function gives this variable, which is read each time. Promised: what the function means.
    """
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


def looking_inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function of `torch.nn.functional`, of which a mode sees the calls inside and not the function.

    Relied on: it asks `has_torch_function` once, at its beginning, whether somebody else is to answer.
    Promised: nothing.
    """
    inside = {**function.__globals__, "has_torch_function": lambda _: False}
    copied = FunctionType(function.__code__, inside, function.__name__, function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def with_current_weights(layer: nn.RNNBase) -> None:
    """Let a recurrent layer of torch use the weights that it has now.

    Relied on: its kernels read a list of them, which `functional_call` leaves as it was. Promised: nothing.
    """
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]


def recast(kind: type[Layer], plain: nn.Module) -> Layer:
    """A layer as one of a subclass, with the same parameters, buffers and hooks.

    Relied on: a module's `__dict__` is all there is to it. Promised: nothing.
    """
    layer = kind.__new__(kind)
    layer.__dict__.update(plain.__dict__)
    return layer
