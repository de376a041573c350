"""networkx, imported when a graph is first made: that takes longer than to read a configuration of a star."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from networkx import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(importlib.import_module("networkx"), name)
