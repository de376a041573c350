"""Run the notebooks of docs/notebooks/, and keep in them what they show: no Jupyter is needed for it.

python tools/run_notebooks.py
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.figure import Figure

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
DPI = 70


def main() -> None:
    """Run all notebooks, each in an empty folder."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            notebook = executed(json.loads(path.read_text(encoding="utf-8")))
        written = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        path.write_text(written, encoding="utf-8")
        print(f"{path.name}: {len(written) // 1000} kB")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells show, once they ran in order in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs("".join(cell["source"]), names, count)
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell shows: what it prints, the figures that it opens, and the value of its last line."""
    body = ast.parse(source, f"cell {count}")
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, f"cell {count}", "exec", dont_inherit=True), names)
        if last is not None:
            code = compile(ast.Expression(last.value), f"cell {count}", "eval", dont_inherit=True)
            value = eval(code, names)
    shown = [{"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)}]
    shown = shown if printed.getvalue() else []
    for number in pyplot.get_fignums():
        shown.append({"output_type": "display_data", **_seen(pyplot.figure(number))})
    pyplot.close("all")
    if value is not None and not source.rstrip().endswith(";"):
        shown.append({"output_type": "execute_result", "execution_count": count, **_seen(value)})
    return shown


def _seen(value: Any) -> dict[str, Any]:
    """The value as notebooks show it: a picture, a table, or text."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(True)}
    if isinstance(value, Figure):
        image = io.BytesIO()
        value.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
        data = {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": ["<Figure>"]}
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(True)
    return {"data": data, "metadata": {}}


if __name__ == "__main__":
    main()
