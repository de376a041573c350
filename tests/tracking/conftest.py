"""Small runs that are tracked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import consilience as cs

SETTINGS: dict[str, Any] = {
    "clients": 3,
    "rounds": 2,
    "seeds": [0, 1],
    "local": {"steps": 1, "batch_size": 4},
    "model": {"name": "mlp", "hidden": [4]},
    "checkpoint": {"every": 1},
    "name": "tiny",
}


@pytest.fixture
def tracked(tmp_path: Path) -> Callable[..., cs.Result]:
    """Runs two methods with trackers."""

    def run(*tracking: object, **changes: Any) -> cs.Result:
        settings = {**SETTINGS, "out": tmp_path / "runs", "existing": "overwrite", **changes}
        return cs.run(["fedavg", "local"], tracking=list(tracking), **settings)

    return run


@pytest.fixture
def curve() -> Callable[..., list[tuple[int, float]]]:
    """The rounds and values of a metric in a run's own records."""

    def find(result: cs.Result, method: str, seed: int, key: str) -> list[tuple[int, float]]:
        lines = [line for line in result.records if (line["method"], line["seed"]) == (method, seed)]
        return [(line["round"], line[key]) for line in lines]

    return find
