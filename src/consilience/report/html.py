"""Tables for notebooks."""

from __future__ import annotations

import html

from rich.table import Table
from rich.text import Text


def html_table(table: Table) -> str:
    """A table of the terminal as HTML; what is bold there is bold here."""
    head = "".join(f"<th>{_cell(column.header)}</th>" for column in table.columns)
    sides = ["left" if column.justify == "left" else "right" for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align:{side}'>{_cell(cell)}</td>" for side, cell in zip(sides, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(content: object) -> str:
    text = html.escape(content.plain if isinstance(content, Text) else str(content)).replace("\n", "<br>")
    return f"<b>{text}</b>" if isinstance(content, Text) and content.style == "bold" else text
