"""The notebooks run from their first cell to their last, and show what they hold."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def executed() -> Callable[[dict[str, Any]], dict[str, Any]]:
    found: Callable[[dict[str, Any]], dict[str, Any]]
    found = runpy.run_path(str(ROOT / "tools" / "run_notebooks.py"))["executed"]
    return found


def forms(notebook: dict[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """What cells show, as far as it is the same on every machine: kinds of outputs, and printed words."""
    return [
        (
            output["output_type"],
            sorted(output.get("data", {})),
            re.findall(r"[^\W\d_]{2,}", "".join(output.get("text", []))),
        )
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
    ]


def test_there_are_three():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_holds(
    path: Path,
    executed: Callable[[dict[str, Any]], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    held = json.loads(path.read_text(encoding="utf-8"))
    assert (held["nbformat"], held["cells"][0]["cell_type"]) == (4, "markdown")
    assert len({cell["id"] for cell in held["cells"]}) == len(held["cells"])
    shown = forms(executed(held))
    assert len(shown) >= 5
    assert shown == forms(held), "make them anew: make notebooks"


def test_a_cell_that_fails_is_noticed(executed: Callable[[dict[str, Any]], dict[str, Any]]):
    cells = [
        {"cell_type": "code", "source": ["seven = 7\n", "seven"]},
        {"cell_type": "code", "source": "six"},
    ]
    (shown,) = executed({"cells": cells[:1]})["cells"][0]["outputs"]
    assert shown["data"] == {"text/plain": ["7"]}
    with pytest.raises(NameError, match="six"):
        executed({"cells": cells})
