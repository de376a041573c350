"""Nesterov's accelerated gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.errors import UserError
from consilience.learning.solvers.sgd import SGD


@final
@dataclass(frozen=True)
class Nesterov(SGD):
    """SGD that looks ahead: `sgd` with `nesterov: true`, and a momentum of 0.9 unless told otherwise."""

    name: ClassVar[str] = "nesterov"
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.nesterov:
            raise UserError("solver nesterov: without nesterov it is sgd; choose that")
