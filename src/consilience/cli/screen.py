"""Where the command line prints to."""

from __future__ import annotations

import logging

from rich.console import Console

from consilience.errors import printable


def console() -> Console:
    """Standard output; wide enough for tables where it is not a terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def guard_log() -> None:
    """Let what is logged be printable: it may quote what came from elsewhere."""
    logging.getLogger("consilience").addFilter(_made_printable)


def _made_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True
