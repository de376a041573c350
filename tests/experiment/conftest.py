"""Tiny runs, and what can be read from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.experiment import Arm, Listener, Result
from consilience.experiment.folder import CLIENTS, METRICS

Records = list[dict[str, Any]]


def _lines(path: Path) -> Records:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _timeless(records: Records) -> Records:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


class _Stop(Listener):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(self, arm: Arm, lines: Records) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _plots(unpainted: None) -> None:
    """Plots are empty files; a module that looks at them has a fixture of that name of its own."""


@pytest.fixture(scope="session")
def blobs() -> Dataset:
    """Three classes of points in five dimensions, far enough apart to learn in a few steps."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(90) % 3
    centres = 2 * torch.randn(3, 5, generator=random)
    inputs = centres[targets] + torch.randn(90, 5, generator=random)
    return Dataset.from_arrays("blobs", inputs[:60], targets[:60], inputs[60:], targets[60:])


@pytest.fixture(scope="session")
def configure(blobs: Dataset) -> Callable[..., Config]:
    """Makes tiny configurations."""

    def read(**changes: Any) -> Config:
        values = {
            "data": blobs,
            "model": {"name": "mlp", "hidden": [8]},
            "clients": 4,
            "rounds": 3,
            "local": {"steps": 2, "batch_size": 4},
            "solver": {"name": "sgd", "lr": 0.1},
        }
        return read_config({**values, **changes})

    return read


@pytest.fixture(scope="session")
def stop_after() -> Callable[[int], Listener]:
    """Interrupts a run after some rounds."""
    return _Stop


@pytest.fixture(scope="session")
def lines() -> Callable[[Path], Records]:
    """The records in a file."""
    return _lines


@pytest.fixture(scope="session")
def timeless() -> Callable[[Records], Records]:
    """Records without what differs from run to run."""
    return _timeless


@pytest.fixture(scope="session")
def column() -> Callable[..., list[Any]]:
    """One number of all records, or of those of a method."""

    def read(result: Result, key: str, method: str | None = None) -> list[Any]:
        return [record.get(key) for record in result.records if method in (None, record["method"])]

    return read


@pytest.fixture(scope="session")
def weights() -> Callable[[Result, str], torch.Tensor]:
    """All parameters of an arm's models, a row a model."""

    def read(result: Result, arm: str) -> torch.Tensor:
        params = result.models[arm]["params"].values()
        return torch.cat([value.flatten(1) for value in params], 1)

    return read


@pytest.fixture(scope="session")
def harvest() -> Callable[[Path], dict[str, Any]]:
    """Everything a run leaves behind, but times."""

    def read(path: Path) -> dict[str, Any]:
        return {
            "digest": json.loads((path / "summary.json").read_text())["digest"],
            "names": sorted(str(p.relative_to(path)) for p in path.rglob("*")),
            **{
                str(file.relative_to(path)): file.read_bytes()
                for kind in ("states", "weights")
                for file in sorted((path / kind).rglob("*.safetensors"))
            },
            **{name: _timeless(_lines(path / name)) for name in (METRICS, CLIENTS)},
        }

    return read
