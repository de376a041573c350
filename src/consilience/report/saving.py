"""Figures that become files: images for screens, vector graphics for papers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from consilience.errors import UserError

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None},
}
"""The formats of files, and what is left out of them, so that the same numbers always give the same one."""

LOOK: dict[Any, Any] = {
    "pdf.fonttype": 42,  # letters stay letters, as journals ask for
    "svg.fonttype": "path",
    "svg.hashsalt": "consilience",
}


class Picture(Figure):
    """A figure that notebooks show by themselves, without pyplot."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=110)
        return image.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure; the ending of the path chooses the format."""
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise UserError(f"{path.name}: plots are written as {', '.join(FORMATS)}")
    with matplotlib.rc_context(LOOK):
        figure.savefig(path, format=kind, dpi=150, metadata=FORMATS[kind])
