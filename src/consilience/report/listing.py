"""The list of runs: a line for each, with what tells it from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich import box
from rich.table import Table
from rich.text import Text

from consilience.errors import some_of
from consilience.report.table import NOTHING


@dataclass(frozen=True)
class Listing:
    """What a list says of a run."""

    name: str
    state: str
    methods: tuple[str, ...] = ()
    rounds: int = 0
    seeds: int = 0
    score: str = ""
    """The best final score, and whose it is."""
    written: float | None = None
    """In seconds since 1970."""
    digest: str = ""


def run_table(listings: Sequence[Listing]) -> Table:
    """The runs as a table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run", "methods"):
        table.add_column(heading, overflow="fold")
    for heading in ("rounds", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("best score", overflow="fold")
    for heading in ("written", "digest"):
        table.add_column(heading, no_wrap=True)
    table.add_column("state", overflow="fold")
    for one in listings:
        date = (
            NOTHING if one.written is None else f"{datetime.fromtimestamp(one.written, UTC):%Y-%m-%d %H:%M}"
        )
        table.add_row(
            Text(one.name),
            Text(some_of(one.methods)),
            str(one.rounds or NOTHING),
            str(one.seeds or NOTHING),
            Text(one.score or NOTHING),
            date,
            one.digest[:12] or NOTHING,
            Text(one.state),
        )
    return table
