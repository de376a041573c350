"""From messages that arrived to the `Inbox` that a hub combines, in a simulation and over a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Inbox
from consilience.exchange.screen import fault
from consilience.types import State


@dataclass(frozen=True)
class Arrival:
    """A message that arrived, whole: as `Phase.received` gives it."""

    sender: int
    samples: int
    """How many training samples the sender has, as the message's header says."""
    message: State


def screened(arrivals: Sequence[Arrival], schema: tree.Schema) -> tuple[tuple[Arrival, ...], dict[int, str]]:
    """The messages that may be combined, in the order of their senders, and why others may not, by sender.

    Args:
        arrivals: What came, in any order.
        schema: What a message of this exchange looks like: see `consilience.exchange.schemas`.
    """
    accepted: list[Arrival] = []
    refused: dict[int, str] = {}
    for one in sorted(arrivals, key=lambda arrival: arrival.sender):
        reason = fault(one.message, schema)
        if reason is None and one.samples < 1:
            reason = f"it claims {one.samples} samples"
        if reason is None and any(one.sender == other.sender for other in accepted):
            reason = "it came twice"
        if reason is None:
            accepted.append(Arrival(one.sender, one.samples, schema.ordered(one.message)))
        else:
            refused.setdefault(one.sender, reason)
    return tuple(accepted), refused


def make_inbox(
    accepted: Sequence[Arrival],
    *,
    population: int,
    itself: int | None = None,
    own: State | None = None,
    mixing: Tensor | None = None,
) -> Inbox:
    """The inbox of a hub that heard at least one message.

    Args:
        accepted: The messages, screened; at a node its own among them if it has one.
        population: How many clients have data, heard or not.
        itself: A node's own number; None at a server.
        own: A node's own upload, private groups among it.
        mixing: [messages] a node's Metropolis-Hastings weights.
    """
    messages = tree.stack([one.message for one in accepted])
    device = next((value.device for value in tree.flatten(messages).values()), torch.device("cpu"))

    def column(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=device)

    samples = column([float(one.samples) for one in accepted])
    mine = None if itself is None else column([float(one.sender == itself) for one in accepted])
    known = column([float(population)])[0]
    return inbox_of(messages, samples, known, own=own, itself=mine, mixing=mixing)


def inbox_of(
    messages: State,
    samples: Tensor,
    population: Tensor,
    *,
    own: State | None = None,
    itself: Tensor | None = None,
    mixing: Tensor | None = None,
) -> Inbox:
    """The inbox of stacked messages.

    Args:
        messages: Every tensor is [messages, ...].
        samples: [messages] float64, how many samples each sender has; 0 for a message that was not received.
        population: 0-d, how many clients have data.
        own: A node's own upload.
        itself: [messages] 1 for the node's own message, 0 for the others; None at a server.
        mixing: [messages] a node's Metropolis-Hastings weights.
    """
    peers = samples if itself is None else samples * (1 - itself)
    return Inbox(messages, _shares(samples), _shares(peers), own, population, mixing)


def _shares(samples: Tensor) -> Tensor:
    """Numbers of samples as shares that sum to 1; all 0 where there are none."""
    total = samples.sum()
    return samples / torch.where(total > 0, total, 1.0)
