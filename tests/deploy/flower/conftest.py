"""A Grid whose nodes are in this process; skipped where Flower is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from scorecard.flower_grid import as_a_server, places


@pytest.fixture(autouse=True)
def _as_a_server() -> Iterator[None]:
    with as_a_server():
        yield


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[..., SimpleNamespace]]:
    """Gives the sites of a configuration, each behind its socket, and a Grid that reaches them."""
    with places(tmp_path) as made:
        yield made
