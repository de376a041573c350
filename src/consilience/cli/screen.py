"""Where the command line prints to."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """Standard output; wide enough for tables where it is not a terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=120)
