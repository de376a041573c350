"""Where the command line prints to."""

from __future__ import annotations

import logging

from rich.console import Console

from consilience.errors import printable


def console(least: int = 0) -> Console:
    """Standard output; wide enough for tables where it is not a terminal.

    Args:
        least: The fewest columns. A terminal that has fewer breaks lines, which is better than to leave out
            what there is no room for.
    """
    found = Console()
    return Console(width=max(found.width if found.is_terminal else 120, least))


def guard_log() -> None:
    """Let what is logged be printable: it may quote what came from elsewhere."""
    logging.getLogger("consilience").addFilter(_made_printable)


def _made_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True
