"""A pure function of tensors as a flat list of operations.

Recording runs the function once on examples and writes down every operation that reaches torch's kernels,
those of the backward pass among them. What is left needs no autograd and no `vmap` any more: it is cheap
to call from Python, and a compiler or a CUDA graph can take it whole. Operations whose results nobody
reads are dropped, e.g. the value of a penalty whose gradient alone matters.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from consilience.torch_internals import (
    draws_randomness,
    drop_dead_code,
    every_operation,
    map_leaves,
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
_FILLS = {_ATEN.ones_like.default: 1, _ATEN.zeros_like.default: 0}


def record(function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> GraphModule:
    """The operations of a function of some tensors, for tensors of the examples' shapes."""
    with torch.no_grad():
        arguments = [example.detach() for example in examples]  # each an object of its own
        recorder = _Recorder(arguments)
        with every_operation(recorder.operate):
            results = function(*arguments)
    graph = recorder.graph
    graph.output(tuple(recorder.node(result) for result in results))
    drop_dead_code(graph)
    return GraphModule(recorder.constants, graph)


class _Recorder:
    """What runs operations and writes them into a graph."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        self.graph = Graph()
        self.constants = torch.nn.Module()
        self._nodes: dict[int, Node] = {}
        self._layouts: dict[Node, tuple[object, ...]] = {}
        self._watches: dict[int, weakref.ref[Tensor]] = {}
        for number, argument in enumerate(arguments):
            self._know(argument, self.graph.placeholder(f"argument_{number}"))

    def operate(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation, which is written down."""
        result = operation(*args, **kwargs)
        if operation in _VIEWS:
            known = self._seen_before(result, self.node(args[0]))
            if known is not None:
                self._know(result, known)
                return result
        _refuse(operation, result)
        # Of a tensor only the shape matters: its value need not be computed.
        if operation in _FILLS and result.is_contiguous():
            kind = {"dtype": result.dtype, "device": result.device}
            size = (list(result.shape), _FILLS[operation])
            self._know(result, self.graph.call_function(_ATEN.full.default, size, kind))
            return result
        node = self.graph.call_function(operation, *map_leaves(self._named, (args, kwargs)))
        if isinstance(result, Tensor):
            self._know(result, node)
        else:
            for place, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._know(part, self.graph.call_function(_item, (node, place)))
        return result

    def node(self, value: Tensor) -> Node:
        """What stands for a tensor; one that was neither given nor computed is a constant."""
        if id(value) not in self._nodes:
            name = f"constant_{len(self._layouts)}"
            self.constants.register_buffer(name, value)
            self._know(value, self.graph.get_attr(name))
        return self._nodes[id(value)]

    def _know(self, value: Tensor, node: Node) -> None:
        """Let a node stand for a tensor while it lives: all tensors of a step would take much memory."""
        identity = id(value)  # which another tensor may have later

        def forget(_: weakref.ref[Tensor]) -> None:
            del self._nodes[identity], self._watches[identity]

        self._nodes[identity] = node
        self._watches[identity] = weakref.ref(value, forget)
        self._layouts.setdefault(node, _layout(value))

    def _seen_before(self, view: Tensor, node: Node) -> Node | None:
        """The node whose view of the memory a view of it comes back to, e.g. transposed twice.

        All nodes on the way are views of memory that is still in use, so that addresses can be compared.
        """
        while self._layouts[node] != _layout(view):
            if node.target not in _VIEWS:
                return None
            node = node.all_input_nodes[0]
        return node

    def _named(self, value: object) -> object:
        return self.node(value) if isinstance(value, Tensor) else value


def _layout(value: Tensor) -> tuple[object, ...]:
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def _refuse(operation: Any, result: object) -> None:
    """Refuse what depends on a number that was read out, or on chance: a program is the same for all data."""
    if draws_randomness(operation):
        raise RuntimeError(f"{operation} draws randomness of its own; use batch.key")
    if not isinstance(result, Tensor | tuple | list):
        raise RuntimeError(f"{operation}: Python code read a tensor's value, e.g. by .item()")


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
        values = [graph.call_function(_ATEN.clone.default, (v,)) if v in places else v for v in values]
        for place, value in zip(places, values, strict=False):
            graph.call_function(_ATEN.copy_.default, (place, value))
    output.args = ((),)
    return GraphModule(module, graph)
