"""When models are evaluated and states are kept, in the course of a run's rounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """What is due after which round; rounds are counted from 1."""

    rounds: int
    """How many there are in all."""
    evaluate_every: int = 1
    trained: bool = True
    """Whether models of peers are also evaluated before they hear their neighbours."""
    keep_every: int = 10
    clients: bool = False
    """Whether every client is evaluated at the end."""

    def evaluates(self, number: int) -> bool:
        """Whether models are evaluated after a round."""
        return number == self.rounds or number % self.evaluate_every == 0

    def keeps(self, number: int) -> bool:
        """Whether the whole state is kept after a round."""
        return number == self.rounds or number % self.keep_every == 0
