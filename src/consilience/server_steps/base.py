"""The contract of a server step: what does a hub do with the merged result?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Setting


@dataclass(frozen=True)
class ServerStep:
    """Replace the old model by the merged one; subclasses do something cleverer."""

    name: ClassVar[str] = "replace"

    def init(self, params: Params) -> State:
        """State that a hub keeps for this step."""
        return {}

    def apply(self, old: Params, merged: Params, hub: State) -> tuple[Params, State]:
        """The hub's new parameters and the new state of this step."""
        return merged, {}

    def refuse(self, setting: Setting) -> str | None:
        """Why this step cannot work in a setting, or None."""
        return None
