"""What the operations of a recorded graph have to do with each other."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from consilience.engine.executors.program import form
from consilience.torch_internals import to_copy

_ATEN = torch.ops.aten
_MOVES = {_ATEN.view.default, _ATEN.expand.default, _ATEN.select.int, _ATEN.unsqueeze.default}
_ARITHMETIC: Mapping[Any, Callable[..., Any]] = {
    _ATEN.mul.Tensor: operator.mul,
    _ATEN.add.Tensor: operator.add,
    _ATEN.sub.Tensor: operator.sub,
    _ATEN.neg.default: operator.neg,
}


def arguments(node: Node) -> Sequence[Any]:
    """What an operation is called with, of whatever type."""
    return node.args


def only_user(node: Node, operation: Any) -> Node | None:
    """The operation that alone reads a node, if it is of a kind."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is operation else None


def turned(node: object) -> Node | None:
    """The stacked matrices of which a node has the transposed ones, if it has."""
    if not isinstance(node, Node) or node.target not in (_ATEN.transpose.int, _ATEN.permute.default):
        return None
    source = arguments(node)[0]
    before, after = form(source), form(node)
    if not before or not after or len(before.shape) != 3:
        return None
    swapped = [(before.shape[axis], before.stride[axis]) for axis in (0, 2, 1)]
    return source if swapped == list(zip(after.shape, after.stride, strict=True)) else None


def unrounded(node: object) -> Node | None:
    """The tensor of whose numbers a node has copies in another type of floats, if it has."""
    if not isinstance(node, Node) or node.target is not to_copy:
        return None
    source = arguments(node)[0]
    before, after = form(source), form(node)
    if not before or not after or set(node.kwargs) - {"dtype", "layout", "device"}:
        return None
    floats = before.dtype.is_floating_point and after.dtype.is_floating_point
    return source if floats and before.device == after.device else None


def has_rows(node: object, most: int) -> bool:
    """Whether a node is [lanes, rows, numbers], in order, with no more than some number of rows."""
    own = form(node)
    return own is not None and len(own.shape) == 3 and own.shape[1] <= most and own.contiguous


def pixels(node: Node) -> tuple[Node, Node, Node] | None:
    """The bytes, the shift and the scale of which a node has (bytes - shift) / scale, with fewer axes."""
    divided = arguments(node)[0] if node.target is _ATEN.view.default else node
    if divided.target is not _ATEN.div.Tensor or divided.kwargs:
        return None
    shifted, scale = arguments(divided)
    if not isinstance(shifted, Node) or shifted.target is not _ATEN.sub.Tensor or shifted.kwargs:
        return None
    floats, shift = arguments(shifted)
    if not isinstance(floats, Node) or floats.target is not to_copy:
        return None
    source = arguments(floats)[0]
    own, raw, *numbers = (form(one) for one in (node, source, shift, scale))
    single = all(found and own and found.shape.numel() == 1 and found.dtype == own.dtype for found in numbers)
    usable = raw and raw.dtype == torch.uint8 and raw.contiguous and own and own.contiguous
    return (source, shift, scale) if usable and single else None


def as_rows(graph: Graph, node: Node, found: tuple[Node, Node, Node]) -> tuple[Node, Node, Node]:
    """The bytes, shift and scale behind a node, the bytes in the node's shape."""
    own = form(node)
    assert own is not None
    return graph.call_function(_ATEN.view.default, (found[0], list(own.shape))), *found[1:]


def unexpanded(node: Node) -> Node:
    """The tensor that a node expands."""
    while node.target is _ATEN.expand.default:
        node = arguments(node)[0]
    return node


def number(node: Node) -> float | None:
    """The number that all entries of a tensor of floats are, where the graph says so."""
    own = form(node)
    if own is None or not own.dtype.is_floating_point:
        return None
    given = arguments(node)
    if node.target is _ATEN.full.default:
        return _finite(given[1])
    if node.target in (_ATEN.scalar_tensor.default, to_copy):
        return _finite(given[0])
    if node.target in _MOVES:
        return number(given[0])
    if node.target in _ARITHMETIC and not node.kwargs:
        parts = [number(part) if isinstance(part, Node) else _finite(part) for part in given]
        return None if None in parts else _finite(_ARITHMETIC[node.target](*parts))
    return None


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def matches(pattern: object, found: object, known: dict[Node, Any]) -> bool:
    """Whether what a graph computes is what a pattern, another recorded graph, computes.

    Args:
        pattern: A node of the pattern, or what an operation there is called with.
        found: The same of the graph.
        known: Which nodes stand for which of the pattern; those that are found are added. The pattern's
            placeholders stand for anything.
    """
    if isinstance(pattern, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(pattern)
            and all(matches(one, two, known) for one, two in zip(pattern, found, strict=True))
        )
    if not isinstance(pattern, Node):
        return not isinstance(found, Node) and type(pattern) is type(found) and pattern == found
    if not isinstance(found, Node):
        return False
    if pattern not in known:
        same = pattern.op == "placeholder" or (
            pattern.op == found.op == "call_function"
            and pattern.target is found.target
            and pattern.kwargs == found.kwargs
            and matches(pattern.args, found.args, known)
        )
        if not same:
            return False
        known[pattern] = found
    return known[pattern] is found
