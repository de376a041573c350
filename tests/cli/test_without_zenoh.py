"""Without Zenoh everything works but nodes, and these say what to install."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_a_missing_extra_is_one_line(
    command: Callable[..., Any],
    refused: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("zenoh", "cryptography"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [one for one in sys.modules if one.startswith("consilience.deploy.zenoh.")]:
        monkeypatch.delitem(sys.modules, name)
    line = 'which is not installed: pip install "consilience[zenoh]"'
    refused(command("certificates", tmp_path, "--nodes", 2), line)
    words = ("--id", 0, "--certificates", tmp_path, "--out", tmp_path)
    refused(command("node", tmp_path / "file.yaml", *words), line)
