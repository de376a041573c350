"""A griffe extension: examples in docstrings become blocks of code on the pages of reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*\n(?:.+\n?)*", flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences every example: a prompt and all lines up to the next empty one."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a name's docstring when it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", obj.docstring.value
            )
