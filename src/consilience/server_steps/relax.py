"""Go a fraction of the way, or further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from consilience import tree
from consilience.server_steps.base import ServerStep
from consilience.sweeping import check_non_negative
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Inbox


@final
@dataclass(frozen=True)
class Relax(ServerStep):
    """`w <- w + lr (merged - w)`; lr 1 replaces."""

    name: ClassVar[str] = "relax"
    lr: float = 1.0

    def __post_init__(self) -> None:
        check_non_negative(self, "lr")

    def apply(self, hub: State, merged: Params, inbox: Inbox) -> tuple[Params, State]:
        if isinstance(self.lr, float | int) and self.lr == 1:
            return merged, {}
        old = hub["params"]
        return tree.axpy(self.lr, tree.sub(merged, old), old), {}
