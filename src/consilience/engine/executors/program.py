"""A pure function of tensors as a flat list of operations.

Recording runs the function once on examples and writes down every operation that reaches torch's kernels,
those of the backward pass among them. What is left needs no autograd and no `vmap` any more: it is cheap
to call from Python, and a compiler or a CUDA graph can take it whole. Operations whose results nobody
reads are dropped, e.g. the value of a penalty whose gradient alone matters.
"""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from consilience.torch_internals import (
    draws_randomness,
    drop_dead_code,
    every_operation,
    leaves,
    map_tensors,
    program_of,
    unsafe_view,
)

_ATEN = torch.ops.aten
_VIEWS = {
    _ATEN.detach.default,
    _ATEN.alias.default,
    _ATEN.view.default,
    unsafe_view,
    _ATEN.expand.default,
    _ATEN.t.default,
    _ATEN.transpose.int,
    _ATEN.permute.default,
    _ATEN.unsqueeze.default,
    _ATEN.squeeze.dim,
}
"""Operations that compute nothing: under `vmap` many of them undo each other."""
STORAGE = "storage"
"""The name under which a node's note says where the memory of its value begins, and how many bytes it has."""
_FILLS = {_ATEN.ones_like.default: 1, _ATEN.zeros_like.default: 0}


class Form(NamedTuple):
    """What a recorded tensor looked like."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def contiguous(self) -> bool:
        """Whether its entries lie in order, without gaps."""
        steps = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        entries = zip(self.shape, self.stride, steps, strict=True)
        return all(size == 1 or stride == step for size, stride, step in entries)


def form(value: object) -> Form | None:
    """The form of the tensor that a node of a recorded graph stands for; None for anything else."""
    found: Form | None = value.meta.get("form") if isinstance(value, Node) else None
    return found


def base(node: Node) -> Node:
    """The node whose memory a view shows; the node itself where it is none."""
    while node.target in _VIEWS:
        node = node.all_input_nodes[0]
    return node


class CannotRecordError(RuntimeError):
    """A function is not the same operations for all numbers, or torch cannot stack some of them."""


def record(function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> GraphModule:
    """The operations of a function of some tensors, for tensors of the examples' shapes."""
    recorder = Recorder(examples)
    recorder.run(function)
    return recorder.module()


class Recorder:
    """What runs operations and writes them into a graph.

    Args:
        examples: The tensors that the function to be recorded is a function of.
    """

    def __init__(self, examples: Sequence[Tensor]) -> None:
        self.graph = Graph()
        self.constants = nn.Module()
        self._mode = every_operation(self.operate)
        self._entered: set[Node] = set()
        arguments = [example.detach() for example in examples]  # each an object of its own
        self._arguments = arguments
        self._nodes: dict[int, Node] = {}
        self._layouts: dict[Node, tuple[object, ...]] = {}
        self._watches: dict[int, weakref.ref[Tensor]] = {}
        self._varying: set[Node] = set()
        """What follows from the arguments; what does not is the same every time."""
        for number, argument in enumerate(arguments):
            self._know(argument, self.graph.placeholder(f"argument_{number}"))

    def run(self, function: Callable[..., Sequence[Tensor]]) -> list[Tensor]:
        """The results of a function of the examples, whose operations are written down."""
        with torch.no_grad(), self._mode:
            results = list(function(*self._arguments))
        self.graph.output(tuple(self.node(result) for result in results))
        drop_dead_code(self.graph, self._entered)
        return results

    def module(self) -> GraphModule:
        """What was written down."""
        return program_of(self.constants, self.graph)

    def enter(self, module: nn.Module, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results of a module that is written down as one operation, whatever happens inside."""
        given = tuple(self.node(value) for value in tensors)
        self._mode.__exit__(None, None, None)  # what happens inside is none of our business
        try:
            results = list(module(*tensors))
        finally:
            self._mode.__enter__()
        name = f"entered_{len(self._entered)}"
        self.constants.add_module(name, module)
        node = self.graph.call_module(name, given)
        self._entered.add(node)
        self._varying.add(node)
        for place, result in enumerate(results):
            self._know(result, self.graph.call_function(_item, (node, place)))
        return results

    def operate(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation, which is written down."""
        result = operation(*args, **kwargs)
        if operation in _VIEWS:
            known = self._seen_before(result, self.node(args[0]))
            if known is not None:
                self._know(result, known)
                return result
        if draws_randomness(operation):
            raise RuntimeError(f"{operation} draws randomness of its own; use batch.key")
        if self._reads(operation, result, args, kwargs):
            return result
        # Of a tensor only the shape matters: its value need not be computed.
        if operation in _FILLS and result.is_contiguous():
            kind = {"dtype": result.dtype, "device": result.device}
            size = (list(result.shape), _FILLS[operation])
            self._know(result, self.graph.call_function(_ATEN.full.default, size, kind))
            return result
        given = tuple([self._named(value) for value in args])  # constants among them get nodes of their own
        options = {name: self._named(value) for name, value in kwargs.items()}
        # What a node is made with is searched for symbols, which takes longer than all else.
        node = self.graph.create_node("call_function", operation, name=_name(operation))
        node.args = given
        if options:
            node.kwargs = options
        if isinstance(result, Tensor):
            self._know(result, node)
        else:
            for place, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._know(part, self.graph.call_function(_item, (node, place)))
        return result

    def node(self, value: Tensor) -> Node:
        """What stands for a tensor; one that was neither given nor computed is a constant."""
        known = self._nodes.get(id(value))
        if known is None:
            name = f"constant_{len(self._layouts)}"
            self.constants.register_buffer(name, value)
            known = self.graph.get_attr(name)
            self._know(value, known)
        return known

    def _know(self, value: Tensor, node: Node) -> None:
        """Let a node stand for a tensor while it lives: all tensors of a step would take much memory."""
        identity = id(value)  # which another tensor may have later

        def forget(_: weakref.ref[Tensor]) -> None:
            del self._nodes[identity], self._watches[identity]

        self._nodes[identity] = node
        fixed = node.op == "get_attr" or (
            node.op == "call_function" and self._varying.isdisjoint(node.all_input_nodes)
        )
        if not fixed:
            self._varying.add(node)
        self._watches[identity] = weakref.ref(value, forget)
        if node not in self._layouts:
            storage = value.untyped_storage()
            node.meta["form"] = Form(value.shape, value.stride(), value.dtype, value.device)
            node.meta[STORAGE] = (storage.data_ptr(), storage.nbytes())
            self._layouts[node] = _layout(value)

    def _seen_before(self, view: Tensor, node: Node) -> Node | None:
        """The node whose view of the memory a view of it comes back to, e.g. transposed twice.

        All nodes on the way are views of memory that is still in use, so that addresses can be compared.
        """
        while self._layouts[node] != _layout(view):
            if node.target not in _VIEWS:
                return None
            node = node.all_input_nodes[0]
        return node

    def _reads(self, operation: Any, result: object, *arguments: Any) -> bool:
        """Whether an operation reads a number out; one that is not the same for all data is refused."""
        if isinstance(result, Tensor | tuple | list):
            return False
        read = [self.node(value) for value in leaves(arguments) if isinstance(value, Tensor)]
        if not self._varying.isdisjoint(read):
            raise RuntimeError(f"{operation}: Python code read a tensor's value, e.g. by .item()")
        return True

    def _named(self, value: Any) -> Any:
        """An argument with nodes in place of tensors."""
        if isinstance(value, Tensor):
            return self.node(value)
        return map_tensors(self.node, value) if isinstance(value, tuple | list | dict) else value


def peak_bytes(module: GraphModule) -> int:
    """The most bytes that what a recorded program computes takes at a time.

    A storage is needed from the operation that makes it to the last that reads it or a view of it.
    """
    owners: dict[Node, int] = {}  # the storage that a node's value lies in, counted from 0
    at: dict[int, int] = {}  # the storage at an address, which later ones use again
    sizes: list[int] = []
    born: list[int] = []
    last: list[int] = []
    for number, node in enumerate(module.graph.nodes):
        read = {owners[one] for one in node.all_input_nodes if one in owners}
        for storage in read:
            last[storage] = number
        if STORAGE not in node.meta:
            continue
        address, size = node.meta[STORAGE]
        if at.get(address) not in read:  # no view of what it reads
            at[address] = len(sizes)
            sizes.append(0 if node.op in ("placeholder", "get_attr") else size)
            born.append(number)
            last.append(number)
        owners[node] = at[address]
    changes = [0] * (len(module.graph.nodes) + 1)
    for size, first, end in zip(sizes, born, last, strict=True):
        changes[first] += size
        changes[end + 1] -= size
    return max(itertools.accumulate(changes))


@cache
def _name(operation: object) -> str:
    """The beginning of the names of what an operation gives, in written code."""
    return str(getattr(operation, "__name__", "value")).partition(".")[0]


def _layout(value: Tensor) -> tuple[object, ...]:
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def _item(values: Sequence[Tensor], place: int) -> Tensor:
    return values[place]


def overwriting(module: GraphModule, results: Sequence[int]) -> GraphModule:
    """The program that writes results over its first arguments and returns nothing.

    Args:
        module: A recorded function.
        results: For each of the first arguments, the position of the result that replaces it.
    """
    graph = copy.deepcopy(module.graph)
    places = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.output_node()
    found: Any = output.args[0]
    with graph.inserting_before(output):
        # An argument that is passed on must be read before it is written over.
        values = [found[position] for position in results]
        pairs = [(place, value) for place, value in zip(places, values, strict=False) if place is not value]
        pairs = [(place, _copied(graph, value)) for place, value in pairs]
        for place, value in pairs:
            graph.call_function(_ATEN.copy_.default, (place, value))
    output.args = ((),)
    return GraphModule(module, graph)


def _copied(graph: Graph, value: Node) -> Node:
    """A value that stays as it is when arguments are written over."""
    if base(value).op != "placeholder":
        return value
    copied = graph.call_function(_ATEN.clone.default, (value,))
    copied.meta["form"] = form(value)
    return copied
