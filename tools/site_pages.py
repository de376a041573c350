"""Pages of the site that are no files of docs/: an mkdocs hook.

The overview is README.md, and for every package and every module of the root there is a page of reference,
which mkdocstrings fills from the docstrings.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "consilience"
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "RESULTS.md": "tables.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of reference into the navigation."""
    assert config.nav is not None
    config.nav.append({"Reference": ["reference/index.md", *({page: _place(page)} for page in _pages())]})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are made here."""
    made = {page: (ROOT / source).read_text() for source, page in FROM_ROOT.items()}
    made |= {_place(name): _reference(modules) for name, modules in _pages().items()}
    made["reference/index.md"] = _contents()
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Mend the links of a page that was written for the repository."""
    return LINK.sub(lambda match: _mended(match, page.file.src_uri), markdown)


def _mended(match: re.Match[str], page: str) -> str:
    """The link on the site; only its text where it leads out of the site."""
    label, target, anchor = match[1], match[2], match[3] or ""
    if "://" in target or page.startswith("reference/"):
        return match[0]
    home = posixpath.join("docs", posixpath.dirname(page))
    place = posixpath.normpath(posixpath.join("" if page in FROM_ROOT.values() else home, target))
    place = posixpath.join("docs", FROM_ROOT[place]) if place in FROM_ROOT else place
    place = re.sub(r"\.ipynb$", ".md", place)  # a page is made of every notebook
    return f"[{label}]({posixpath.relpath(place, home)}{anchor})" if place.startswith("docs/") else label


def _pages() -> dict[str, list[Path]]:
    """The modules of each page: a package with all its modules, or a module of the root."""
    packages = {_name(file): sorted(file.parent.glob("*.py")) for file in PACKAGE.glob("*/**/__init__.py")}
    modules = {_name(file): [file] for file in PACKAGE.glob("*.py") if not file.stem.startswith("_")}
    return dict(sorted((packages | modules).items()))


def _name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _place(page: str) -> str:
    return f"reference/{page.removeprefix('consilience.')}.md"


def _reference(modules: list[Path]) -> str:
    """A page whose title is its first module, the package itself; the others follow one level below."""
    first, *others = [f"::: {_name(module)}\n" for module in modules]
    options = json.dumps({"heading_level": 1, "members": _defined(modules[0])})
    return "\n".join([f"{first}    options: {options}\n", *others])


def _defined(module: Path) -> list[str]:
    """The names that are defined in a module, not imported: those have their place where they are defined."""
    names: list[str] = []
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def _contents() -> str:
    """The first page of reference: what each of the others is about."""
    lines = ["# Reference", "", "| package or module | what it is |", "|---|---|"]
    for name, modules in _pages().items():
        place = posixpath.basename(_place(name))
        lines.append(f"| [`{name}`]({place}) | {_summary(modules[0])} |")
    return "\n".join(lines) + "\n"


def _summary(module: Path) -> str:
    return (ast.get_docstring(ast.parse(module.read_text())) or "").splitlines()[0].replace("|", "\\|")
