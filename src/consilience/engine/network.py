"""A graph of peers on which not everything works: links lose messages, nodes leave, return and sleep.

Every draw is keyed by the seed and the round, so that a run repeats, and resumes as if it had never stopped.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from consilience.errors import UserError
from consilience.learning.randomness import Purpose, generator
from consilience.types import Booleans


@dataclass(frozen=True)
class Network:
    """How a graph behaves over time; by default it stays as it is and everything arrives."""

    redraw_every: int | None = None
    """Rounds after which a random graph is drawn anew."""
    loss: float = 0.0
    """How likely a message gets lost on a link."""
    leave: float = 0.0
    """How likely a node that is there leaves before a round."""
    come_back: float = 0.5
    """How likely a node that is away comes back before a round."""
    fresh: bool = False
    """Whether it comes back with its initial model and nothing remembered."""
    wake: tuple[float, float] = (1.0, 1.0)
    """How likely a node is awake in a round: every node has a rate of its own between these two."""
    staleness: int | None = None
    """The rounds after which a message that a node holds is too old to be used; None: never."""

    def __post_init__(self) -> None:
        low, high = self.wake
        if not 0 < low <= high <= 1:
            raise UserError(
                f"network: wake is a chance above 0 and up to 1, or two, the smaller first, not {low}, {high}"
            )
        if self.staleness is not None and not self.asynchronous:
            raise UserError("network: staleness is for nodes that sleep: set wake below 1")
        if self.fresh and self.leave == 0:
            raise UserError("network: returning: fresh is for nodes that leave: set leave above 0")

    @property
    def asynchronous(self) -> bool:
        """Whether nodes wake at rates of their own and use the newest message they hold."""
        return self.wake != (1.0, 1.0)

    @property
    def reliable(self) -> bool:
        """Whether everybody hears all neighbours in every round."""
        return self.loss == 0 and self.leave == 0 and not self.asynchronous

    def drawing(self, round_number: int) -> int:
        """Which of the graphs drawn one after the other a round has."""
        return round_number // self.redraw_every if self.redraw_every else 0

    def present(self, seed: int, nodes: int, round_number: int) -> Booleans:
        """[nodes] who has not left."""
        if self.leave == 0:
            return np.ones(nodes, dtype=np.bool_)
        return _present(self.leave, self.come_back, seed, nodes, round_number)

    def returned(self, seed: int, nodes: int, round_number: int) -> Booleans:
        """[nodes] who was away in the last round and is there in this one."""
        if round_number == 0:
            return np.zeros(nodes, dtype=np.bool_)
        now, before = (self.present(seed, nodes, number) for number in (round_number, round_number - 1))
        return now & ~before

    def awake(self, seed: int, nodes: int, round_number: int) -> Booleans:
        """[nodes] who wakes in a round."""
        if not self.asynchronous:
            return np.ones(nodes, dtype=np.bool_)
        rates = generator(seed, Purpose.WAKING).uniform(*self.wake, nodes)
        woken: Booleans = generator(seed, Purpose.WAKING, round_number + 1).random(nodes) < rates
        return woken

    def lost(self, seed: int, nodes: int, round_number: int) -> Booleans:
        """[receivers, senders] the links on which a message of this round gets lost."""
        if self.loss == 0:
            return np.zeros((nodes, nodes), dtype=np.bool_)
        draws = generator(seed, Purpose.LINKS, round_number).random((nodes, nodes))
        lost: Booleans = draws < self.loss
        return lost


@functools.lru_cache(maxsize=4096)
def _present(leave: float, come_back: float, seed: int, nodes: int, round_number: int) -> Booleans:
    """[nodes] who is there, everybody in round 0; read-only, because it is remembered.

    It follows from the round whose number has one binary digit 1 less, the last. So a late round that is
    asked for first, on resume, is no deep recursion, and rounds asked for in order cost few draws each.
    """
    there: Booleans = np.ones(nodes, dtype=np.bool_)
    if round_number > 0:
        earlier = round_number & (round_number - 1)
        there = _present(leave, come_back, seed, nodes, earlier)
        for number in range(earlier + 1, round_number + 1):
            draws = generator(seed, Purpose.CHURN, number).random(nodes)
            there = np.where(there, draws >= leave, draws < come_back)
    there.flags.writeable = False
    return there
