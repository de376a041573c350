"""Sums over messages that come in parts, so that a hub need not hold all of them.

A hub asks its `Inbox` for sums. `Asking` notes which, while some messages are there and without an answer;
whoever has noted them for all parts adds them up, and `Answering` gives the sums when the hub combines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from consilience import tree
from consilience.aggregate import Values, Way
from consilience.algorithm import Inbox
from consilience.exchange.inbox import inbox_of
from consilience.types import Params, State

Combine = Callable[[State, Inbox], State]


class NotASumError(Exception):
    """A hub looks at messages in another way than by sums."""


class Names(Mapping[str, Tensor]):
    """The names of a group of messages, which themselves are not there."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Tensor:
        raise NotASumError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Asked(NamedTuple):
    """One of the sums that a hub asks for."""

    values: Params
    """[messages of this part, ...]."""
    weights: Tensor
    """[all messages]."""
    way: Way


@dataclass
class Asking:
    """Takes the place of `Inbox.gather`: it notes what is asked for; nobody knows the answer yet: NaN."""

    messages: State
    """The messages of this part."""
    asked: list[Asked] = field(default_factory=list)

    def __call__(
        self, messages: State, values: Values, weights: Tensor, way: Way = "sum", *, exact: bool = False
    ) -> Params:
        found = values(self.messages)
        self.asked.append(Asked(found, weights, way))
        return {name: _unknown(value[0], exact=exact) for name, value in found.items()}


@dataclass
class Answering:
    """Takes the place of `Inbox.gather` once all messages were added up.

    They were with weights as if all of them were sound. Of the weights that really count these differ by a
    factor, as all shares do: it is exactly 1 where all were sound.
    """

    sums: Sequence[Params]
    dtypes: Sequence[Mapping[str, torch.dtype]]
    weights: Sequence[Tensor]
    """[all messages] what each was weighed by."""
    sound: Tensor
    """[all messages] 1.0 for those that were added, 0.0 for the others."""
    used: list[Tensor] = field(default_factory=list)
    """[all messages] what each was to be weighed by, as was asked so far."""

    def __call__(
        self, messages: State, values: Values, weights: Tensor, way: Way = "sum", *, exact: bool = False
    ) -> Params:
        number = len(self.used)
        self.used.append(weights)
        sums = self.sums[number]
        if way == "most":
            return sums
        before = self.weights[number].double() * self.sound
        square = before @ before
        factor = torch.where(
            square > 0, before @ weights.double() / torch.where(square > 0, square, 1.0), 1.0
        )
        return {
            name: factor * total if exact else (factor * total).to(self.dtypes[number][name])
            for name, total in sums.items()
        }


def ask(combine: Combine, hub: State, messages: State, samples: Tensor, population: Tensor) -> list[Asked]:
    """The sums that a hub asks for, with the values of some of the messages.

    Args:
        combine: What the hub does.
        hub: Its state.
        messages: Those of this part, stacked.
        samples: [all messages] how many samples each sender has.
        population: 0-d, how many clients have data.
    """
    asking = Asking(messages)
    combine(hub, replace(inbox_of(_names(messages), samples, population), gather=asking))
    return asking.asked


def answer(
    combine: Combine, hub: State, form: State, samples: Tensor, population: Tensor, answering: Answering
) -> State:
    """The hub's new state.

    Args:
        combine: What the hub does.
        hub: Its state.
        form: Messages, of which only names count.
        samples: [all messages] how many samples each sender has.
        population: 0-d, how many clients have data.
        answering: What knows the sums.
    """
    inbox = inbox_of(_names(form), samples * answering.sound, population)
    return combine(hub, replace(inbox, gather=answering))


def is_sum(combine: Combine, hub: State, message: State, population: Tensor) -> bool:
    """Whether a hub asks for nothing but sums, none of which depends on another.

    It is tried: an answer that is NaN would show in whatever depends on it, and weights of the messages that
    are sound must keep their proportions when another one is not.

    Args:
        combine: What the hub does.
        hub: Its state.
        message: A message that it may hear.
        population: 0-d, how many clients have data.
    """
    samples = torch.tensor([3.0, 5.0, 4.0], dtype=torch.float64, device=population.device)
    missing = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64, device=population.device)
    one = tree.map_leaves(lambda value: value[None], message)
    try:
        asked = ask(combine, hub, one, samples, population)
        sums = [{name: value[0].double() for name, value in item.values.items()} for item in asked]
        dtypes = [{name: value.dtype for name, value in item.values.items()} for item in asked]
        given = [item.weights for item in asked]
        trial = Answering(sums, dtypes, given, missing)
        answer(combine, hub, one, samples, population, trial)
    except (NotASumError, RuntimeError, ValueError, TypeError):
        # Names can not be mapped over, and there is no decomposition of a matrix of NaN.
        return False
    numbers = [*given, *(value for item in asked for value in item.values.values())]
    if not all(bool(value.isfinite().all()) for value in numbers) or len(trial.used) != len(asked):
        return False
    return all(_proportional(*pair, missing) for pair in zip(given, trial.used, strict=True))


def _proportional(left: Tensor, right: Tensor, chosen: Tensor) -> bool:
    if left.shape != chosen.shape or right.shape != chosen.shape:
        return False
    a, b = left.double() * chosen, right.double() * chosen
    return bool(torch.linalg.vector_norm(a * (b @ a) - b * (a @ a)) <= 1e-9 * (a @ a) * b.norm())


def _unknown(like: Tensor, *, exact: bool) -> Tensor:
    if not like.is_floating_point():
        return torch.zeros_like(like)
    return torch.full_like(like, torch.nan, dtype=torch.float64 if exact else like.dtype)


def _names(messages: State) -> State:
    return {group: cast(Params, Names(tuple(params))) for group, params in messages.items()}
