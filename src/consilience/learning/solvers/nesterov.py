"""Nesterov's accelerated gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience.learning.solvers.sgd import SGD


@final
@dataclass(frozen=True)
class Nesterov(SGD):
    """SGD that looks ahead: `sgd` with `nesterov: true`, and a momentum of 0.9 unless told otherwise."""

    name: ClassVar[str] = "nesterov"
    momentum: float = 0.9
    nesterov: Literal[True] = True
