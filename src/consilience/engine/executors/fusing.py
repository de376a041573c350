"""Recorded programs with fewer passes over memory: losses, dense layers and updates as single operations.

What is not understood stays as it was recorded.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from consilience.engine.executors.losses import fuse_losses
from consilience.engine.executors.patterns import (
    arguments,
    as_rows,
    has_rows,
    only_user,
    pixels,
    turned,
    unrounded,
)
from consilience.engine.executors.program import base, form
from consilience.engine.executors.updates import fuse_updates
from consilience.kernels import dense  # noqa: F401  (registers the operations)
from consilience.torch_internals import drop_dead_code, to_copy

_ATEN, _OURS = torch.ops.aten, torch.ops.consilience

MOST_ROWS = 128
"""How many rows a batch has at most for which memory, and not arithmetic, bounds a layer."""


def fused(module: GraphModule, *, layers: bool = True) -> GraphModule:
    """The same program, which overwrites its arguments, with losses, updates and layers as single operations.

    Without layers where products are exact: those of torch are the faster ones then.
    """
    graph = copy.deepcopy(module.graph)
    for node in list(graph.nodes):
        _round_as_it_lies(graph, node)
    drop_dead_code(graph)  # a gradient that is read in vain, too, would be kept in memory
    fuse_losses(graph)
    drop_dead_code(graph)
    fuse_updates(graph)
    drop_dead_code(graph)
    for node in list(graph.nodes):
        if layers and node.target is _ATEN.bmm.default:
            _fuse_layer(graph, node)
    drop_dead_code(graph)
    return GraphModule(module, graph)


def _round_as_it_lies(graph: Graph, node: Node) -> None:
    """Replace matrices that are turned, rounded and turned back by the rounded ones."""
    own, source = form(node), turned(unrounded(turned(node)))
    if own and source:
        _replace(graph, node, to_copy, (source,), {"dtype": own.dtype})


def _fuse_layer(graph: Graph, product: Node) -> None:
    """Replace a product with weights, and what follows it, by one operation."""
    left, right = arguments(product)
    if not has_rows(left, MOST_ROWS):
        return
    weight = _weight(turned(unrounded(right) or right))
    if weight:
        total, bias = _with_bias(product)
        relu = only_user(total, _ATEN.relu.default)
        last, found = relu or total, pixels(left)
        with graph.inserting_before(last):
            x, *numbers = as_rows(graph, left, found) if found else (left, None, None)
        _replace(graph, last, _OURS.dense_lanes.default, (x, weight, bias, relu is not None, *numbers))
        return
    weight = _weight(right)
    if weight:
        masked = only_user(product, _ATEN.threshold_backward.default)
        seen = arguments(masked)[1] if masked and arguments(masked)[::2] == (product, 0) else None
        last = masked if masked and has_rows(seen, MOST_ROWS) else product
        seen = None if last is product else seen
        _replace(graph, last, _OURS.dense_lanes_backward.default, (left, weight, seen))


def _replace(graph: Graph, node: Node, operation: Any, args: tuple[Any, ...], kwargs: Any = None) -> None:
    """Let an operation stand where a node stood whose values it computes."""
    with graph.inserting_before(node):
        new = graph.call_function(operation, args, kwargs)
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)


def _weight(node: Node | None) -> Node | None:
    """The weights that a product takes, before they are rounded, if they are an argument of the program."""
    source = unrounded(node) or node
    own = form(source)
    known = own and own.contiguous and own.dtype.is_floating_point
    return source if source and known and base(source).op == "placeholder" else None


def _with_bias(product: Node) -> tuple[Node, Node | None]:
    """The sum of a product and a bias, and the bias; the product itself where there is none."""
    total, own = only_user(product, _ATEN.add.Tensor), form(product)
    summed = form(total)
    if not total or not own or not summed or total.kwargs or summed[:1] + summed[2:] != own[:1] + own[2:]:
        return product, None
    lanes, _, outs = own.shape
    left, right = arguments(total)
    bias = right if left is product else left
    rows = form(bias)
    if not rows or rows.shape != (lanes, 1, outs):
        return product, None
    while bias.target in (_ATEN.view.default, _ATEN.unsqueeze.default, to_copy) or (
        bias.target is _ATEN.mul.Scalar and arguments(bias)[1] == 1
    ):
        bias = arguments(bias)[0]
    flat = form(bias)
    return (total, bias) if flat and flat.shape == (lanes, outs) and flat.contiguous else (product, None)
