"""Means over messages: by data size, by importance. The stacked tensors have the messages on axis 0.

Sums run in float64. Of float32 numbers the mean of equal messages is then that message, bit for bit, and the
order of arrival decides at most a last bit here and there, where the sum lies between two numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import torch
from torch import Tensor

from consilience.types import Params, State

Values = Callable[[State], Params]
"""A function of stacked messages that gives [messages, ...] tensors, each row from its own message alone."""
Way = Literal["sum", "most"]
"""How rows become one: by their weighted sum, or by the largest number of those with a positive weight."""


class Gather(Protocol):
    """A way to bring the rows of all messages together; float64 where `exact`, else in the rows' own type."""

    def __call__(
        self, messages: State, values: Values, weights: Tensor, way: Way = "sum", *, exact: bool = False
    ) -> Params: ...


PART = 2**24
"""How many numbers are taken to float64 at a time."""


def weighted_sum(stacked: Tensor, weights: Tensor) -> Tensor:
    """`sum_k weights[k] * stacked[k]`, in float64.

    It is one matrix product, so that many receivers of the same messages (a graph) cost no more memory
    than one.
    """
    flat, exact = stacked.reshape(stacked.shape[0], -1), weights.double()
    # In float64 large models would take twice their memory: that of a part is enough.
    width = max(1, PART // len(flat))
    sums = [exact @ part.double() for part in torch.split(flat, width, 1)]
    return (sums[0] if len(sums) == 1 else torch.cat(sums, -1)).reshape(stacked.shape[1:])


def most(stacked: Tensor, weights: Tensor) -> Tensor:
    """The largest number of every place, of the rows that have a positive weight."""
    heard = (weights > 0).reshape(-1, *[1] * (stacked.ndim - 1))
    lowest = False if stacked.dtype == torch.bool else torch.iinfo(stacked.dtype).min
    return torch.where(heard, stacked, lowest).amax(0)


def at_once(
    messages: State, values: Values, weights: Tensor, way: Way = "sum", *, exact: bool = False
) -> Params:
    """What a `Gather` gives where all messages are there, stacked."""
    found = values(messages)
    if way == "most":
        return {name: most(value, weights) for name, value in found.items()}
    sums = {name: weighted_sum(value, weights) for name, value in found.items()}
    return sums if exact else {name: total.to(found[name].dtype) for name, total in sums.items()}


def effective_number(weights: Tensor) -> Tensor:
    """0-d, `(sum w)^2 / sum w^2`: how many equal weights are as uneven as these; 1 where all are 0."""
    squares = weights.double().square().sum()
    return torch.where(
        squares > 0, weights.double().sum().square() / torch.where(squares > 0, squares, 1.0), 1.0
    )


def mean(stacked: Params, weights: Tensor) -> Params:
    """The weighted mean of every tensor; `weights` sum to 1."""
    return {name: weighted_sum(value, weights).to(value.dtype) for name, value in stacked.items()}


def merge_buffers(stacked: Params, weights: Tensor) -> Params:
    """The merged buffers: floating ones by the weighted mean, integer ones (step counters) by the maximum."""
    return {
        name: weighted_sum(value, weights).to(value.dtype)
        if value.is_floating_point()
        else most(value, weights)
        for name, value in stacked.items()
    }


Evidence = Callable[[State, str], Tensor]
"""A function of stacked messages that gives non-negative numbers of the shape of a parameter, by its name."""


def importance_mean(
    stacked: Params, importance: Params, weights: Tensor, factors: Tensor | None = None
) -> Params:
    """The mean of every coordinate weighted by importance, or by `weights` where nobody has any importance.

    Args:
        stacked: The values; every tensor is [messages, ...].
        importance: Non-negative numbers of the same shapes.
        weights: [messages], the fallback; they sum to 1.
        factors: [messages], by what a message's importance is multiplied; by default 1 for those with a
            positive weight, 0 for the others.
    """
    messages = {"params": stacked, "importance": importance}
    return weighed_mean(at_once, messages, stacked, lambda m, name: m["importance"][name], weights, factors)


def weighed_mean(
    gather: Gather,
    messages: State,
    names: Iterable[str],
    evidence: Evidence,
    weights: Tensor,
    factors: Tensor | None = None,
) -> Params:
    """What `importance_mean` gives for some of the messages' parameters, by a `Gather`."""
    exact = (weights > 0 if factors is None else factors).double()
    merged: Params = {}
    for name in names:  # one after the other: in float64 they take much memory

        def importance(given: State, name: str = name) -> Params:
            return {name: evidence(given, name).double()}

        def weighed(given: State, name: str = name) -> Params:
            return {name: evidence(given, name).double() * given["params"][name]}

        def plain(given: State, name: str = name) -> Params:
            return {name: given["params"][name]}

        total = gather(messages, importance, exact)[name]
        mean = gather(messages, weighed, exact)[name] / torch.where(total > 0, total, 1.0)
        fallback = gather(messages, plain, weights)[name]
        merged[name] = torch.where(total > 0, mean.to(fallback.dtype), fallback)
    return merged


def importance_number(
    stacked: Params, importance: Params, weights: Tensor, factors: Tensor | None = None
) -> Tensor:
    """0-d, the effective number of messages in `importance_mean`, the mean over all coordinates.

    Parameters without importance are means by `weights`. The arguments are those of `importance_mean`.
    """
    exact = (weights > 0 if factors is None else factors).double()
    by_weight = effective_number(weights)
    total, count = torch.zeros_like(by_weight), 0
    for name, value in stacked.items():
        size = value[0].numel()
        count += size
        if name not in importance:
            total = total + size * by_weight
            continue
        evidence = importance[name].double()
        # Sums by products, so that many receivers of the same messages cost no more memory than one.
        sums, squares = weighted_sum(evidence, exact), weighted_sum(evidence.square(), exact.square())
        number = sums.square() / torch.where(squares > 0, squares, 1.0)
        total = total + torch.where(squares > 0, number, by_weight).sum()
    return total / count
