"""Pages of the site that are notebooks: an mkdocs hook.

Of every notebook in docs/notebooks/ a page is made, with what the notebook shows; the notebook itself is a
file of the site, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for every notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        content = _page(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))


def _page(notebook: dict[str, Any], name: str) -> str:
    """The notebook as Markdown; where to get it stands below the title, with which its first cell begins."""
    first, *others = [_cell(cell) for cell in notebook["cells"]]
    title, _, rest = first.partition("\n")
    where = f'<p><a href="{name}" download>Download this page as a notebook.</a></p>'
    return "\n\n".join([title, where, rest, *others]) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    """What a cell showed: text that it printed, a picture, or a table."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        return f'<img alt="a plot" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```text\n{''.join(data['text/plain'])}\n```"
