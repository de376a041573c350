"""The mean loss of a classification problem and its gradient, as one operation.

Recorded they are some thirty small ones. Which, torch itself says: what is looked for is what is recorded for
the loss alone, so that other losses stay as they are.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from consilience.engine.executors.patterns import arguments, matches, number
from consilience.engine.executors.program import Form, form, record
from consilience.kernels import classification  # noqa: F401  (registers the operation)
from consilience.learning.task import mean_loss
from consilience.problems import Classification

MOST = 2**16
"""How many logits a lane has at most: all of them are the work of one program."""


def fuse_losses(graph: Graph) -> None:
    """Replace losses of classification problems whose gradients are computed."""
    gradient = _Pattern.of(torch.zeros(2, 2, 2)).results[0].target
    for node in list(graph.nodes):
        own = form(node)
        if (
            node.target is gradient
            and own
            and len(own.shape) == 3
            and own.shape.numel() <= MOST * own.shape[0]
        ):
            _fuse_loss(graph, node, own)


class _Pattern(NamedTuple):
    """What is recorded for the loss alone."""

    given: list[Node]
    """Logits, targets, weight, and the gradient with respect to the loss."""
    results: list[Node]
    """The gradient with respect to logits, the loss, and the sum of weights."""

    @classmethod
    def of(cls, logits: Tensor) -> _Pattern:
        targets = torch.zeros(logits.shape[:2], dtype=torch.int64, device=logits.device)
        examples = [logits, targets, logits[..., 0].contiguous(), logits[:, 0, 0].contiguous()]
        graph = record(torch.func.vmap(_loss), examples).graph
        given = [node for node in graph.nodes if node.op == "placeholder"]
        return cls(given, arguments(graph.output_node())[0])


def _loss(logits: Tensor, targets: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    def loss(logits: Tensor) -> Tensor:
        return mean_loss(Classification().losses(logits, targets), weight)

    found: tuple[Any, ...] = torch.func.vjp(loss, logits)
    value, back = found
    return back(grad)[0], value, weight.sum()


def _fuse_loss(graph: Graph, gradient: Node, own: Form) -> None:
    pattern = _Pattern.of(torch.zeros(own.shape, dtype=own.dtype, device=own.device))
    known: dict[Node, Node] = {}
    if not matches(pattern.results[0], gradient, known):
        return
    *given, upstream = (known[node] for node in pattern.given)
    scale = number(upstream)
    alike = [_alike(form(node), form(one)) for node, one in zip(given, pattern.given[:3], strict=True)]
    if scale is None or not all(alike):
        return
    order = {node: place for place, node in enumerate(graph.nodes)}
    last = max(given, key=order.__getitem__)
    results = [
        (place, node)
        for place, one in enumerate(pattern.results)
        for node in graph.nodes
        if order[node] > order[last] and matches(one, node, dict(known))
    ]
    with graph.inserting_after(last):
        found = graph.call_function(torch.ops.consilience.classify_lanes.default, (*given, scale))
    for place, node in results:
        with graph.inserting_after(found):
            part = graph.call_function(operator.getitem, (found, place))
        part.meta["form"] = form(node)
        node.replace_all_uses_with(part)


def _alike(one: Form | None, two: Form | None) -> bool:
    return one is not None and two is not None and (one.shape, one.dtype) == (two.shape, two.dtype)
