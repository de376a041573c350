"""Docstrings have a subject: none begins with a word that leaves it out, as "Of a batch." does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import consilience

PACKAGE = Path(consilience.__file__).parent
FRAGMENT_WORDS = frozenset(
    {"of", "that", "whose", "by", "with", "before", "at", "as", "to", "under", "for", "on", "from"}
)
"""First words of fragments. A module's docstring reads as a title and may begin with them."""


def fragments(source: str) -> list[str]:
    """The line and the first words of every docstring without a subject, the module's own aside."""
    found = sorted(_docstrings(ast.parse(source)))
    return [
        f"{line}: {' '.join(text.split()[:8])}" for line, text in found if _first_word(text) in FRAGMENT_WORDS
    ]


def _docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines and the texts of what documents definitions, attributes and constants."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, ast.get_docstring(node) or ""
        for _, block in ast.iter_fields(node):
            for before, after in pairwise(block if isinstance(block, list) else ()):
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    value = after.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield after.lineno, value.value


def _first_word(text: str) -> str:
    return text.split(maxsplit=1)[0].strip(",.:;").lower() if text.strip() else ""


def test_every_docstring_has_a_subject():
    found = [
        f"{path.relative_to(PACKAGE)}:{one}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for one in fragments(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(["docstrings without a subject:", *found])


def test_fragments_are_found_wherever_something_is_documented():
    source = '''"""From a title, which may be one."""
ROWS = 3
"""Of a batch."""
SIZES: int = 3
"""How many sizes there are."""
if ROWS:
    pass
else:
    PAIRS = ()
    """Of a lane and a job."""


class Thing:
    """That which is."""

    size: int
    """By seed."""

    @property
    def place(self):
        """
        As it lies in memory."""
        self.values = {}
        """Whose they are."""
        return "To be or not"

    async def come(self):
        """At last: it comes."""


def plain():
    """The numbers of a row."""
    "With no assignment before it."
'''
    assert fragments(source) == [
        "3: Of a batch.",
        "10: Of a lane and a job.",
        "13: That which is.",
        "17: By seed.",
        "20: As it lies in memory.",
        "24: Whose they are.",
        "27: At last: it comes.",
    ]


def test_words_that_only_begin_like_fragments_are_no_fragments():
    assert fragments('def one():\n    """Bytes of a tensor."""\n') == []
    assert fragments('def one():\n    """Forms of messages."""\n') == []
