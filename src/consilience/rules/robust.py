"""What robust rules share: order statistics and inner products of the messages that were received.

Who was heard is a tensor, and under `vmap` no shape may depend on it: messages that were not received are
sorted to the end and never reach a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox

BLOCK = 2**21
"""How many numbers are sorted at a time, over all receivers of a graph."""


def by_blocks(function: Callable[..., Tensor], inbox: Inbox, *stacked: Tensor) -> Tensor:
    """What a function makes of stacked tensors [messages, ...], some of their coordinates at a time.

    On a graph everything that depends on who was heard takes nodes x messages x coordinates; in blocks
    that is never much.

    Args:
        function: What turns tensors [messages, coordinates] into one of [coordinates].
        inbox: The inbox that holds the messages; it tells whether there are many receivers.
        stacked: Tensors of one shape, [messages, ...].
    """
    messages = len(stacked[0])
    receivers = 1 if inbox.own is None else messages
    width = max(1, BLOCK // (messages * receivers))
    blocks = (torch.split(value.reshape(messages, -1), width, dim=1) for value in stacked)
    parts = [function(*block) for block in zip(*blocks, strict=True)]
    return torch.cat(parts).reshape(stacked[0].shape[1:])


def middle_mean(stacked: Tensor, heard: Tensor, trim: Tensor) -> Tensor:
    """[coordinates] the mean without the `trim` smallest and the `trim` largest numbers, in float64.

    Numbers that are equal give exactly that number; where nothing was heard the result is 0.

    Args:
        stacked: [messages, coordinates].
        heard: [messages] bool, whether a message counts.
        trim: 0-d, less than half of those heard.
    """
    count = heard.sum()
    ordered = torch.where(heard[:, None], stacked, torch.inf).sort(0).values.double()
    rank = torch.arange(len(stacked), device=stacked.device)[:, None]
    lowest = torch.where(rank == trim, ordered, 0.0).sum(0)
    kept = (rank >= trim) & (rank < count - trim)
    above = torch.where(kept, ordered - lowest, 0.0).sum(0) / (count - 2 * trim).clamp(min=1)
    return torch.where(count > 0, lowest + above, 0.0)


def median(stacked: Tensor, heard: Tensor) -> Tensor:
    """[coordinates] the median of the messages heard; of an even number, the mean of the middle two."""
    return middle_mean(stacked, heard, half_of(heard))


def half_of(heard: Tensor) -> Tensor:
    """0-d, the most messages that can be trimmed at each end so that something is left."""
    return ((heard.sum() - 1) // 2).clamp(min=0)


def inner_products(params: Params) -> Tensor:
    """[messages, messages] inner products of models, each as one vector, in float64.

    They do not depend on the receiver, so that all nodes of a graph share them. Those of two messages
    are computed from these two alone: a huge third one costs them no precision.
    """
    products = []
    for value in params.values():
        flat = value.reshape(len(value), -1).double()
        products.append(flat @ flat.T)
    total = torch.stack(products).sum(0)
    return 0.5 * (total + total.T)  # exactly symmetric, so that ties are ties


def sq_distances(products: Tensor) -> Tensor:
    """[messages, messages] squared distances from inner products; infinite where those are too large."""
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=0)


def hearer(conditions: Conditions) -> str:
    """The word for who combines messages, for the text of a refusal."""
    return "a node" if conditions.graph else "a hub"
