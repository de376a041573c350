"""The same attacks against a plain Flower job: its own FedAvg, fed with its own messages, in this process.

What decides here are Flower's strategy and the way its guides save a model; both are its own code, called as
a ServerApp calls them. Its network takes no part: a node's reply reaches the strategy as the node wrote it.
A trial passes where plain Flower has kept what we promise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

from scorecard.finding import Finding, Tally
from scorecard.flower_grid import as_a_server

NODES, LIAR = 10, 0
EXAMPLES = 100
PAST = 10
"""How many rounds there have been whose messages are sent again."""


def net(seed: int) -> nn.Module:
    """A small network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10))


def reply(node: int, state: dict[str, torch.Tensor], examples: float = EXAMPLES) -> Message:
    """What a node sends after training."""
    order = Message(RecordDict(), dst_node_id=100 + node, message_type=MessageType.TRAIN)
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": examples})}
    return Message(RecordDict(content), reply_to=order)


@cache
def models(round_number: int = 0) -> list[dict[str, torch.Tensor]]:
    """The models of all nodes in a round."""
    return [dict(net(1000 * round_number + node).state_dict()) for node in range(NODES)]


def combined(replies: list[Message]) -> dict[str, torch.Tensor]:
    """The global model that plain FedAvg makes of some replies."""
    arrays, _ = FedAvg(fraction_evaluate=0.0).aggregate_train(1, replies)
    assert arrays is not None
    return dict(arrays.to_torch_state_dict())


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether two models are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def flips(trials: int, folder: Path) -> Finding:
    """Check 3: a bit flipped in a model that was saved as Flower's guide does it (torch.save), and loaded."""
    tally, draw, path = Tally(), random.Random(3), folder / "model.pt"
    arrays = ArrayRecord(net(0).state_dict())
    torch.save(arrays.to_torch_state_dict(), path)
    whole, right = path.read_bytes(), net(0).state_dict()
    for _ in range(trials):
        place, bit = draw.randrange(len(whole)), draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        model = net(1)
        try:
            model.load_state_dict(torch.load(path))
        except Exception:
            tally.count("refused")
            tally.note("refused")
            continue
        harmless = same(dict(model.state_dict()), dict(right))
        tally.count("loaded, the same model" if harmless else "loaded as another model")
        tally.note("loaded", None if harmless else "another model was loaded without a word")
    return tally.finding()


def not_finite(trials: int, folder: Path) -> Finding:
    """Check 13: NaN and infinity in the weights of one node of ten; FedAvg has no curvature."""
    tally = Tally()
    spoils: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "NaN": lambda value: torch.full_like(value, torch.nan),
        "one NaN": lambda value: _with_first(value, torch.nan),
        "inf": lambda value: _with_first(value, torch.inf),
        "-inf": lambda value: _with_first(value, -torch.inf),
    }
    with as_a_server():
        for name, spoil in spoils.items():
            state = dict(models()[LIAR])
            first = next(iter(state))
            state[first] = spoil(state[first])
            replies = [reply(node, state if node == LIAR else models()[node]) for node in range(NODES)]
            finite = all(value.isfinite().all() for value in combined(replies).values())
            tally.note(name, None if finite else "it is in the global model")
    return tally.finding()


def _with_first(value: torch.Tensor, number: float) -> torch.Tensor:
    found = value.clone()
    found.view(-1)[0] = number
    return found


def replays(trials: int, folder: Path) -> Finding:
    """Check 20: a node's message of an earlier round, sent again as its reply in this one.

    That the same reply does not count twice is the SuperLink's affair, which takes one reply to a message.
    """
    tally = Tally()
    with as_a_server():
        honest, draw = [reply(node, models(PAST)[node]) for node in range(NODES)], random.Random(20)
        for _ in range(trials):
            node, round_number = draw.randrange(NODES), draw.randrange(PAST)
            others = [one for place, one in enumerate(honest) if place != node]
            found = combined([reply(node, models(round_number)[node]), *others])
            fault = None if same(found, combined(others)) else "an old message was combined"
            tally.note(f"node {node}, of round {round_number}", fault)
    return tally.finding()


def inflated(trials: int, folder: Path) -> Finding:
    """Check 23: one node of ten inflates its number of examples; what it then decides of the global model."""
    tally = Tally()
    with as_a_server():
        for power in (1, 2, 3, 6, 12, 30):
            states = [{"w": torch.full((4,), float(node == LIAR))} for node in range(NODES)]
            replies = [
                reply(node, state, EXAMPLES * (10.0**power if node == LIAR else 1.0))
                for node, state in enumerate(states)
            ]
            share = float(combined(replies)["w"].max())
            tally.most("largest share", share)
            tally.note(f"x10^{power}", None if share <= 0.2 else f"its share is {share:.2f}")
    return tally.finding()
