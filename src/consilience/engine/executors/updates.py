"""The end of a program that overwrites its arguments, as few operations.

There stands pointwise arithmetic on tensors of the parameters' shapes: decay, penalties, momentum, the step
itself. All of it becomes one operation, `descend`, which also computes the gradients of dense layers, so that
these are never in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from consilience.engine.executors.patterns import (
    arguments,
    as_rows,
    has_rows,
    number,
    pixels,
    turned,
    unexpanded,
    unrounded,
)
from consilience.engine.executors.program import base, form
from consilience.kernels.descent import Update, encoded
from consilience.torch_internals import to_copy

_ATEN = torch.ops.aten

MOST_ROWS = 512
"""How many rows are summed at most where a gradient is used: each part of the weights reads all of them."""
TOGETHER = 16
"""How many updates one operation has at most: each is a part of a kernel's text."""

_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
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
    **{getattr(_ATEN, name).Scalar: f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()},
    **{getattr(_ATEN, name).Tensor: f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()},
}
"""Pointwise operations, in words that torch and Triton share."""


def fuse_updates(graph: Graph) -> None:
    """Replace copies over arguments, and all that is computed for them alone, where it is understood."""
    copies = [node for node in graph.nodes if node.target is _ATEN.copy_.default]
    written = {arguments(node)[0] for node in copies}
    drafts = [draft for group in _groups(graph, copies) if (draft := _draft(group, written))]
    with graph.inserting_before(copies[0] if copies else None):
        drafts = [_from_pixels(graph, draft) for draft in drafts]
    for begin in range(0, len(drafts), TOGETHER):
        some = drafts[begin : begin + TOGETHER]
        places = [place for draft in some for place in draft.writes]
        given = [node for draft in some for node in (*draft.gradient, *draft.reads) if node not in places]
        position = {node: count for count, node in enumerate(dict.fromkeys((*places, *given)))}
        text = encoded([draft.update(position) for draft in some])
        operands = (places, list(position)[len(places) :], text)
        with graph.inserting_before(copies[0]):
            graph.call_function(torch.ops.consilience.descend.default, operands)
    done = {place for draft in drafts for place in draft.writes}
    for node in copies:
        if arguments(node)[0] in done:
            graph.erase_node(node)


@dataclass
class _Group:
    """Copies over arguments of one shape that are computed together."""

    shape: torch.Size
    copies: list[Node]
    inner: list[Node] = field(default_factory=list)
    """The pointwise operations whose results nobody else reads, last first."""


def _groups(graph: Graph, copies: Sequence[Node]) -> list[_Group]:
    owners: dict[Node, _Group] = {}
    for node in copies:
        place, value = (form(argument) for argument in arguments(node)[:2])
        alike = place and value and place.shape == value.shape and place.dtype == value.dtype
        if place and alike and place.contiguous and place.shape:
            owners[node] = _Group(place.shape, [node])
    for node in reversed(graph.nodes):
        own = form(node)
        if (
            not node.users
            or any(user not in owners for user in node.users)
            or not own
            or not _pointwise(node)
        ):
            continue
        first, *others = {id(owners[user]): owners[user] for user in node.users}.values()
        if any(group.shape != own.shape for group in (first, *others)):
            continue
        for other in others:
            first.copies += other.copies
            first.inner += other.inner
            owners.update(dict.fromkeys((*other.copies, *other.inner), first))
        first.inner.append(node)
        owners[node] = first
    order = {node: count for count, node in enumerate(graph.nodes)}
    groups = list({id(group): group for group in owners.values()}.values())
    for group in groups:
        group.inner.sort(key=order.__getitem__)
    return [group for group in groups if all(arguments(node)[1] in group.inner for node in group.copies)]


def _pointwise(node: Node) -> bool:
    """Whether an operation can be written as a line: it is known, and types are not mixed."""
    if node.target is to_copy:
        return unrounded(node) is not None
    scaled = {"alpha"} if node.target in (_ATEN.add.Tensor, _ATEN.sub.Tensor) else set()
    if node.target not in _LINES or set(node.kwargs) - scaled:
        return False
    forms = [form(value) for value in (node, *node.all_input_nodes)]
    own, *kinds = [found.dtype for found in forms if found]
    if not kinds or any(not isinstance(value, Node | int | float) for value in node.args):
        return False
    if node.target is _ATEN.where.self:
        return kinds[0] == torch.bool and set(kinds[1:]) == {own}
    return own in (torch.bool, kinds[0]) and len(set(kinds)) == 1 and kinds[0].is_floating_point


@dataclass(frozen=True)
class _Draft:
    """An update, with nodes in place of positions."""

    gradient: tuple[Node, ...]
    reads: Mapping[Node, str]
    lines: tuple[str, ...]
    writes: Mapping[Node, str]

    def update(self, position: Mapping[Node, int]) -> Update:
        """The update, where tensors are at these positions."""
        return Update(
            tuple(position[node] for node in self.gradient),
            tuple((name, position[node]) for node, name in self.reads.items()),
            self.lines,
            tuple((position[node], name) for node, name in self.writes.items()),
        )


class _Words:
    """The names of what a group's lines read, and what these names stand for."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._names: dict[Node, str] = {}
        self.reads: dict[Node, str] = {}
        self.gradient: tuple[Node, ...] = ()

    def call(self, node: Node, name: str) -> str:
        """Give a node a name."""
        self._names[node] = name
        return name

    def of(self, value: object) -> str | None:
        """The word for an argument of an operation, or None if there can be none."""
        fixed = number(value) if isinstance(value, Node) else value
        if fixed is not None or not isinstance(value, Node):
            return repr(fixed)
        if value in self._names:
            return self._names[value]
        if not self.gradient:
            self.gradient = _operands(value, self._group)
            if self.gradient:
                return self.call(value, "g")
        source = unexpanded(value)
        own = form(source)
        if own is None or not own.dtype.is_floating_point or not _expands(own.shape, self._group.shape):
            return None
        return self.call(value, self.reads.setdefault(source, f"a{len(self.reads)}"))


def _draft(group: _Group, written: set[Any]) -> _Draft | None:
    """The update of a group; None if it reads what cannot be named, or what others write."""
    words = _Words(group)
    lines: list[str] = []
    for node in group.inner:
        given = [words.of(value) for value in node.args]
        own = form(node)
        if own is None or None in given:
            return None
        if "alpha" in node.kwargs:
            given[1] = f"{node.kwargs['alpha']!r} * {given[1]}"
        line = _LINES[node.target].format(*given, dtype=str(own.dtype).removeprefix("torch."))
        lines.append(f"{words.call(node, f't{len(lines)}')} = {line}")
    places = {arguments(node)[0]: words.of(arguments(node)[1]) or "" for node in group.copies}
    own_reads = [node for node in words.reads if node not in places]
    if not lines or any(base(node) in written for node in (*words.gradient, *own_reads)):
        return None
    return _Draft(words.gradient, words.reads, tuple(lines), places)


def _from_pixels(graph: Graph, draft: _Draft) -> _Draft:
    """The same update, which reads inputs as the bytes that they were made of."""
    found = pixels(draft.gradient[1]) if len(draft.gradient) > 1 else None
    if found is None:
        return draft
    grad, x = draft.gradient
    return replace(draft, gradient=(grad, *as_rows(graph, x, found)))


def _operands(node: Node, group: _Group) -> tuple[Node, ...]:
    """What the gradient of a dense layer is made of, if a node is one that its group alone reads."""
    own = form(node)
    if not own or own.shape != group.shape or any(user not in group.inner for user in node.users):
        return ()
    if node.target is _ATEN.bmm.default:
        grad, x = turned(arguments(node)[0]), arguments(node)[1]
        return (grad, x) if grad and has_rows(grad, MOST_ROWS) and has_rows(x, MOST_ROWS) else ()
    source = base(node)
    if source.target is _ATEN.sum.dim_IntList and arguments(source)[1] == [1] and not source.kwargs:
        grad = arguments(source)[0]
        summed = form(grad)
        alike = summed and own.shape == (summed.shape[0], summed.shape[-1]) and own.contiguous
        return (grad,) if alike and has_rows(grad, MOST_ROWS) else ()
    return ()


def _expands(shape: Sequence[int], other: Sequence[int]) -> bool:
    ends = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(size in (1, wanted) for size, wanted in ends)
