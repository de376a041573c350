"""The site builds without a warning, needs no network, and its reference has every module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src" / "consilience").rglob("*.py")
    if path.name != "__main__.py"
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}


def test_every_module_has_its_place_in_the_reference(pages: dict[str, str]):
    found = {name for page in pages.values() for name in re.findall(r'<h[12] id="(consilience[\w.]*)"', page)}
    assert set(MODULES) - {"consilience"} <= found


def test_no_page_loads_anything_from_the_network(pages: dict[str, str]):
    for page in pages.values():
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", page)


def test_links_to_files_outside_the_site_are_only_their_text(pages: dict[str, str]):
    assert "benchmarks/papers" in pages["results.html"]
    assert "../benchmarks" not in pages["results.html"]
    assert 'href="contributing.html"' in pages["index.html"]
    assert "CITATION.cff" in pages["index.html"]


def test_examples_in_docstrings_are_code(pages: dict[str, str]):
    reference = [page for name, page in pages.items() if name.startswith("reference")]
    assert any("&gt;&gt;&gt; " in page for page in reference)
    assert not any("<blockquote>" in page for page in reference)


def test_notebooks_are_pages_with_what_they_show(pages: dict[str, str]):
    page = pages["notebooks/03-peers-without-a-server.html"]
    assert 'href="03-peers-without-a-server.ipynb" download' in page
    assert page.count('src="data:image/png;base64,') >= 2
    assert 'href="../reading-results.html"' in page
    assert 'href="notebooks/03-peers-without-a-server.html"' in pages["tutorial.html"]
