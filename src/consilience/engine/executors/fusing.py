"""Recorded programs with fewer passes over memory: dense layers and updates as single operations.

A program that overwrites its arguments ends in pointwise arithmetic on tensors of the parameters' shapes: decay,
penalties, momentum, the step itself. All of it becomes one operation, `descend`, which also computes the gradients
of dense layers, so that these are never in memory. Layers with their biases and ReLUs become one operation each.
What is not understood stays as it was recorded.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from consilience.engine.executors.program import base, form
from consilience.kernels import dense  # noqa: F401  (registers the operations)
from consilience.kernels.descent import Update, encoded
from consilience.torch_internals import drop_dead_code, to_copy

_ATEN = torch.ops.aten
_OURS = torch.ops.consilience

MOST_ROWS = 128
"""How many rows a batch has at most for which memory, and not arithmetic, bounds a layer."""
MOST_SUMMED = 512
"""How many rows are summed at most while a gradient is computed where it is used."""
TOGETHER = 16
"""How many updates one operation has at most: each is a part of a kernel's text."""

_COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_LINES: Mapping[Any, str] = {
    _ATEN.add.Tensor: "{0} + {1}",
    _ATEN.add.Scalar: "{0} + {1}",
    _ATEN.sub.Tensor: "{0} - {1}",
    _ATEN.sub.Scalar: "{0} - {1}",
    _ATEN.rsub.Scalar: "{1} - {0}",
    _ATEN.mul.Tensor: "{0} * {1}",
    _ATEN.mul.Scalar: "{0} * {1}",
    _ATEN.div.Tensor: "{0} / {1}",
    _ATEN.div.Scalar: "{0} / {1}",
    _ATEN.neg.default: "-{0}",
    _ATEN.reciprocal.default: "1 / {0}",
    _ATEN.abs.default: "ops.abs({0})",
    _ATEN.sqrt.default: "ops.sqrt({0})",
    _ATEN.addcmul.default: "{0} + {1} * {2}",
    _ATEN.where.self: "ops.where({0}, {1}, {2})",
    to_copy: "{0}.to(ops.{dtype})",
    **{
        getattr(getattr(_ATEN, name), kind): f"{{0}} {sign} {{1}}"
        for name, sign in _COMPARISONS.items()
        for kind in ("Scalar", "Tensor")
    },
}
"""Pointwise operations, in words that torch and Triton share."""
_MOVES = {_ATEN.view.default, _ATEN.expand.default, _ATEN.select.int, _ATEN.unsqueeze.default}
_NUMBERS = {
    _ATEN.mul.Tensor: operator.mul,
    _ATEN.add.Tensor: operator.add,
    _ATEN.sub.Tensor: operator.sub,
    _ATEN.neg.default: operator.neg,
}


def fused(module: GraphModule) -> GraphModule:
    """The same program, which overwrites its arguments, with layers and updates as single operations."""
    graph = copy.deepcopy(module.graph)
    _fuse_updates(graph)
    drop_dead_code(graph)
    for node in list(graph.nodes):
        if node.target is _ATEN.bmm.default:
            _fuse_layer(graph, node)
    drop_dead_code(graph)
    return GraphModule(module, graph)


# Updates


@dataclass
class _Group:
    """Copies over arguments that are computed together."""

    shape: torch.Size
    copies: list[Node] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)
    """The pointwise operations of which nobody else reads the results, last first."""

    def take(self, other: _Group) -> None:
        """Take over what another group has."""
        self.copies += other.copies
        self.inner += other.inner


def _fuse_updates(graph: Graph) -> None:
    copies = [node for node in graph.nodes if node.target is _ATEN.copy_.default]
    written = {node.args[0] for node in copies}
    groups = [group for group in _groups(graph, copies) if group.inner]
    found = [(group, described) for group in groups if (described := _described(group, written))]
    for begin in range(0, len(found), TOGETHER):
        some = found[begin : begin + TOGETHER]
        places = [node.args[0] for group, _ in some for node in group.copies]
        given = list(dict.fromkeys(node for _, one in some for node in one.given if node not in places))
        position = {node: number for number, node in enumerate((*places, *given))}
        text = encoded([one.update(position) for _, one in some])
        with graph.inserting_before(copies[0]):
            graph.call_function(_OURS.descend.default, (places, given, text))
    for group, _ in found:
        for node in group.copies:
            graph.erase_node(node)


def _groups(graph: Graph, copies: Sequence[Node]) -> list[_Group]:
    """The copies that can be fused, with all that is computed for them alone."""
    owners: dict[Node, _Group] = {}
    for node in copies:
        place, value = form(node.args[0]), form(node.args[1])  # type: ignore[arg-type]
        if place and value and place[::2] == value[::2] and place.contiguous and place.shape:
            owners[node] = _Group(place.shape, [node])
    for node in reversed(graph.nodes):
        using = {id(owners[user]): owners[user] for user in node.users if user in owners}
        if not using or any(user not in owners for user in node.users):
            continue
        first, *others = using.values()
        shapes = {group.shape for group in using.values()}
        if not _pointwise(node) or shapes != {form(node).shape}:  # type: ignore[union-attr]
            continue
        for other in others:
            first.take(other)
            owners.update({member: first for member in (*other.copies, *other.inner)})
        first.inner.append(node)
        owners[node] = first
    groups = {id(group): group for group in owners.values()}.values()
    order = {node: number for number, node in enumerate(graph.nodes)}
    for group in groups:
        group.inner.sort(key=order.__getitem__)
    return [group for group in groups if all(node.args[1] in group.inner for node in group.copies)]


def _pointwise(node: Node) -> bool:
    """Whether an operation can be written as a line: it is known, and types are not mixed."""
    own = form(node)
    if node.target not in _LINES or own is None or set(node.kwargs) - {"dtype", "alpha"}:
        return False
    if "alpha" in node.kwargs and node.target not in (_ATEN.add.Tensor, _ATEN.sub.Tensor):
        return False
    if any(not isinstance(value, Node | int | float) for value in node.args):
        return False
    kinds = [found.dtype for value in node.all_input_nodes if (found := form(value))]
    if node.target is to_copy:
        return set(node.kwargs) == {"dtype"} and all(kind.is_floating_point for kind in (*kinds, own.dtype))
    if node.target is _ATEN.where.self:
        return kinds[0] == torch.bool and set(kinds[1:]) == {own.dtype}
    return own.dtype in (torch.bool, kinds[0]) and len(set(kinds)) == 1 and kinds[0].is_floating_point


@dataclass(frozen=True)
class _Described:
    """An update, with nodes in place of positions."""

    gradient: tuple[Node, ...]
    reads: dict[Node, str]
    lines: tuple[str, ...]
    writes: tuple[tuple[Node, str], ...]

    @property
    def given(self) -> Iterator[Node]:
        """All that is read."""
        yield from (*self.gradient, *self.reads)

    def update(self, position: Mapping[Node, int]) -> Update:
        """The update, where tensors are at these positions."""
        return Update(
            tuple(position[node] for node in self.gradient),
            tuple((name, position[node]) for node, name in self.reads.items()),
            self.lines,
            tuple((position[node], name) for node, name in self.writes),
        )


def _described(group: _Group, written: set[Any]) -> _Described | None:
    """The update of a group; None if it reads what is not understood, or what others write."""
    names: dict[Node, str] = {}
    reads: dict[Node, str] = {}
    gradient: tuple[Node, ...] = ()
    places = {node.args[0] for node in group.copies}
    lines: list[str] = []

    def word(value: object) -> str | None:
        nonlocal gradient
        if not isinstance(value, Node):
            return repr(value)
        number = _number(value)
        if number is not None:
            return repr(number)
        if value in names:
            return names[value]
        operands = () if gradient else _operands(value, group)
        if operands:
            gradient, names[value] = operands, "g"
            return "g"
        source = _unexpanded(value)
        own = form(source)
        if own is None or not (own.dtype.is_floating_point and _expands(own.shape, group.shape)):
            return None
        names[value] = reads.setdefault(source, f"a{len(reads)}")
        return names[value]

    for node in group.inner:
        words = [word(value) for value in node.args]
        if None in words:
            return None
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            words[1] = f"{alpha!r} * {words[1]}"
        kind = str(form(node).dtype).removeprefix("torch.")  # type: ignore[union-attr]
        names[node] = f"t{len(lines)}"
        lines.append(f"{names[node]} = {_LINES[node.target].format(*words, dtype=kind)}")
    foreign = (node for node in (*gradient, *reads) if base(node) in written)
    if any(node not in places or node in gradient for node in foreign):
        return None
    writes = tuple((node.args[0], names[node.args[1]]) for node in group.copies)  # type: ignore[index,misc]
    return _Described(gradient, reads, tuple(lines), writes)  # type: ignore[arg-type]


def _operands(node: Node, group: _Group) -> tuple[Node, ...]:
    """What the gradient of a dense layer is made of, if a node is one that its group alone reads."""
    if any(user not in group.inner for user in node.users):
        return ()
    if node.target is _ATEN.bmm.default:
        left, x = node.args
        grad = _turned(left)
        return (grad, x) if grad and _batch(grad) and _batch(x) and _fits(node, group) else ()  # type: ignore
    source = base(node)
    if source.target is _ATEN.sum.dim_IntList and source.args[1] == [1] and not source.kwargs:
        grad = source.args[0]  # type: ignore[assignment]
        own = form(grad)  # type: ignore[arg-type]
        alike = own is not None and group.shape == (own.shape[0], own.shape[-1])
        return (grad,) if alike and _batch(grad) and _fits(node, group) else ()  # type: ignore
    return ()


def _fits(node: Node, group: _Group) -> bool:
    own = form(node)
    return own is not None and own.shape == group.shape and own.contiguous


def _batch(node: Any, most: int = MOST_SUMMED) -> bool:
    """Whether a node has the rows of each lane's batch, in order."""
    own = form(node)
    return own is not None and len(own.shape) == 3 and own.shape[1] <= most and own.contiguous


def _number(node: Node) -> float | None:
    """The number that all entries of a tensor are, where the program says so."""
    if node.target is _ATEN.full.default:
        return _finite(node.args[1])
    if node.target in (_ATEN.scalar_tensor.default, to_copy):
        return _finite(node.args[0])
    own = form(node)
    if own is None or not own.dtype.is_floating_point:
        return None
    if node.target in _MOVES:
        return _number(node.args[0])  # type: ignore[arg-type]
    if node.target in _NUMBERS and not node.kwargs:
        parts = [_number(v) if isinstance(v, Node) else _finite(v) for v in node.args]
        return None if None in parts else float(_NUMBERS[node.target](*parts))
    return None


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _unexpanded(node: Node) -> Node:
    while node.target is _ATEN.expand.default:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _expands(shape: Sequence[int], other: Sequence[int]) -> bool:
    ends = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(size in (1, wanted) for size, wanted in ends)


# Layers


def _fuse_layer(graph: Graph, product: Node) -> None:
    """Replace a product with weights, and what follows it, by one operation."""
    left, right = product.args
    if not _batch(left, MOST_ROWS):
        return
    weight = _weight(_turned(right))
    if weight:
        last, bias = _with_bias(product)
        relu = _only_user(last, _ATEN.relu.default)
        call: tuple[Any, ...] = (_OURS.dense_lanes.default, (left, weight, bias, relu is not None))
        last = relu or last
    else:
        weight = _weight(right)
        if weight is None:
            return
        masked = _only_user(product, _ATEN.threshold_backward.default)
        usable = masked and masked.args[0] is product and masked.args[2] == 0 and _batch(masked.args[1])
        last = masked if masked and usable else product
        call = (_OURS.dense_lanes_backward.default, (left, weight, last.args[1] if usable else None))
    with graph.inserting_before(last):
        new = graph.call_function(*call)
    new.meta["form"] = form(last)
    last.replace_all_uses_with(new)


def _weight(node: Any) -> Node | None:
    """The weights that a product takes, before they are rounded; they are an argument of the program."""
    if not isinstance(node, Node):
        return None
    source = node.args[0] if node.target is to_copy else node
    own = form(source) if isinstance(source, Node) else None  # type: ignore[arg-type]
    known = own is not None and own.contiguous and own.dtype.is_floating_point
    return source if known and base(source).op == "placeholder" else None  # type: ignore


def _with_bias(product: Node) -> tuple[Node, Node | None]:
    """The sum of a product and a bias, and the bias; the product itself where there is none."""
    total = _only_user(product, _ATEN.add.Tensor)
    if total is None or total.kwargs or form(total)[::2] != form(product)[::2]:  # type: ignore[index]
        return product, None
    lanes, _, outs = form(product).shape  # type: ignore[union-attr]
    other = total.args[1] if total.args[0] is product else total.args[0]
    if not isinstance(other, Node) or form(other).shape != (lanes, 1, outs):  # type: ignore[union-attr]
        return product, None
    while other.target in (_ATEN.view.default, _ATEN.unsqueeze.default, to_copy) or (
        other.target is _ATEN.mul.Scalar and other.args[1] == 1
    ):
        other = other.args[0]  # type: ignore[assignment]
    own = form(other)
    return (total, other) if own and own.shape == (lanes, outs) and own.contiguous else (product, None)


def _only_user(node: Node, operation: Any) -> Node | None:
    """The operation that alone reads a node, if it is of a kind."""
    user, *others = node.users or (None,)
    return user if user and not others and user.target is operation else None


def _turned(node: Any) -> Node | None:
    """The matrices of which a node has the transposed ones."""
    if not isinstance(node, Node) or node.target not in (_ATEN.transpose.int, _ATEN.permute.default):
        return None
    source: Node = node.args[0]  # type: ignore[assignment]
    before, after = form(source), form(node)
    swapped = before and after and len(before.shape) == 3 and [after[0][i] for i in (0, 2, 1)] == [*before[0]]
    return source if swapped and [after[1][i] for i in (0, 2, 1)] == [*before[1]] else None  # type: ignore
