"""The file that shows what was collected: one page with all that it needs, which asks no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

STYLES = ("common.css", "page.css")
SCRIPTS = ("common.js", "charts.js", "maps.js", "tables.js", "page.js")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header id="head"></header>
<nav id="legend" aria-label="methods"></nav>
<main id="main"><noscript>This page needs JavaScript, which is switched off.</noscript></main>
<div id="hint" role="status" hidden></div>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def render(data: Mapping[str, Any]) -> str:
    """The page as a text, from what `collect` gives."""
    style, script = ("\n".join(map(resource, names)) for names in (STYLES, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {source_digest(script.encode())}; "
        f"style-src {source_digest(style.encode())}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(f"{data['title']} – Consilience")
    return PAGE.format(policy=policy, title=title, style=style, script=script, data=embedded(data))


def embedded(data: object) -> str:
    r"""The JSON of some values as it may stand in a script element, which no text in it can end.

    >>> embedded({"label": "</script>&"})
    '{"label":"\\u003c/script\\u003e\\u0026"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def resource(name: str) -> str:
    """A file beside this module."""
    return files("consilience.report.page").joinpath(name).read_text(encoding="utf-8")


def source_digest(text: bytes) -> str:
    """How a page's policy names the script or the style that may be used."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
