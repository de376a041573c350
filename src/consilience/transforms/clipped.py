"""Updates of bounded length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience import tree
from consilience.errors import UserError
from consilience.sweeping import is_swept
from consilience.transforms.base import Message, Transform
from consilience.types import State


@final
@dataclass(frozen=True)
class Clipped(Transform):
    """Shortens every update (how far the parameters moved, or the gradient) that is longer than `norm`."""

    name: ClassVar[str] = "clipped"
    norm: float = 1.0

    def __post_init__(self) -> None:
        if not is_swept(self.norm) and not 0 < self.norm < float("inf"):
            raise UserError(f"clipped: norm must be above 0 and finite, not {self.norm}")

    def apply(self, message: Message, memory: State) -> tuple[State, State]:
        assert message.group is not None
        update, given = message.update, message.upload[message.group]
        length = tree.sq_norm(update).sqrt()
        short = message.with_update(tree.scale(self.norm / length.clamp(min=self.norm), update))
        # An update that is short enough stays as it is, without rounding.
        chosen = tree.where(length > self.norm, {message.group: short[message.group]}, {message.group: given})
        return {**message.upload, **chosen}, memory
