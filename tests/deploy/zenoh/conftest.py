"""Federations of real processes on the loopback; skipped where Zenoh is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("zenoh", reason='needs pip install "consilience[zenoh]"')
pytest.importorskip("cryptography", reason='needs pip install "consilience[zenoh]"')

from consilience.deploy.zenoh.certificates import make
from scorecard.launching import until
from scorecard.rings import MOST, Ring, rings


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make(folder, MOST + 1)
    return folder


@pytest.fixture
def ring(tmp_path: Path, keys: Path) -> Iterator[Callable[..., Ring]]:
    """Makes federations, whose processes end with the test."""
    with rings(tmp_path, keys) as made:
        yield made


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    return until
