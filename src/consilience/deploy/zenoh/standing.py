"""How things stand at a node, in words that others can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.deploy.agreeing import Agreement
from consilience.deploy.peer import Peer
from consilience.deploy.site import tally_of
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.words import NONE


def standing(peer: Peer, mailbox: Mailbox, waiting: Sequence[int]) -> dict[str, Any]:
    """Where a node is, and what it knows of its neighbours."""
    with mailbox.changed:
        neighbours = {
            str(node): {
                "alive": one.alive,
                "round": None if one.word is None else one.word.round,
                "staleness": None if one.heard == NONE else max(0, peer.round - 1 - one.heard),
                "bytes": one.received,
            }
            for node, one in mailbox.neighbours.items()
        }
    return {
        "round": peer.round,
        "rounds": peer.terms.rounds,
        "neighbours": neighbours,
        "waiting": list(waiting),
        "done": peer.done,
        **carried(peer),
    }


def carried(peer: Peer) -> dict[str, int]:
    """The bytes of a node's messages, as a simulation counts them."""
    return {
        "bytes_up": sum(peer.traffic.up.values()),
        "bytes_down": sum(peer.traffic.down.values()),
    }


def scores_of(agreement: Agreement, peer: Peer) -> dict[str, float]:
    """What a node's model scores, on the global test set where the node has it and on its own rows."""
    found = {f"{kind}_{name}": value for kind, one in peer.scores().items() for name, value in one.items()}
    tested, model = agreement.tested, peer.evaluated_model()
    if tested is not None and model:
        sums = tally_of(agreement.terms, tested[0], model, tested[1])
        found |= {f"test_{name}": float(value) for name, value in agreement.terms.task.scores(sums).items()}
    return found
