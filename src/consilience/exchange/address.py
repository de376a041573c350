"""Where an exchange is found: something that can travel, as a function cannot."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.algorithm import Algorithm, Phase


@dataclass(frozen=True)
class Address:
    """Which exchange of an algorithm is meant."""

    round: int
    """The round, counted from 0; it keys all randomness of the exchange."""
    index: int
    """The number of the exchange within the round, or within the setup."""
    setup: bool = False
    """Whether the exchange is one of those before the first round."""

    def phase(self, algorithm: Algorithm) -> Phase:
        """The exchange of an algorithm that is at this address."""
        phases = algorithm.setup() if self.setup else algorithm.at(self.round).phases()
        return phases[self.index]
