"""Raw results made up for a table, and a small recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.reproduce import Recipe, read_recipe
from consilience.reproduce.raw import Raw

RECIPE = """
title: A table
paper: Somebody
base:
  {data: mnist-sample, model: {name: mlp, hidden: [4]}, clients: 2, rounds: 3, local: {steps: 1},
   seeds: [0, 1], evaluate: {clients: false}}
cells:
  - {label: first, method: [fedavg, hwa]}
  - {label: second, method: fedavg, clients: 3}
quick: {rounds: 1, seeds: [0]}
tables:
  - title: scores
    where: {cell: first}
    rows: {FedAvg: fedavg*, HWA: hwa*}
    columns: {end: star}
    paper: {FedAvg: [90.5], HWA: [91]}
  - title: rounds
    where: {cell: first}
    rows: {FedAvg: fedavg*, HWA: hwa*}
    columns: {20 %: {target: 0.2}, 50 %: {target: 0.5}}
    paper: {HWA: [3, null]}
claims:
  - {says: HWA is more accurate, tables: scores, ahead: HWA, of: FedAvg, note: As expected.}
  - {says: HWA is faster, tables: rounds, ahead: HWA, of: FedAvg}
  - {says: Both are alike, tables: scores, alike: 1.0}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def recipe(file: Path) -> Recipe:
    return read_recipe(file)


Curves = dict[str, list[list[float | None]]]
"""Scores of every round, of every seed, by method."""


@pytest.fixture
def raw() -> Callable[..., Raw]:
    def make(curves: Curves, planned: int | None = None, finished: bool = True, **swept: Any) -> Raw:
        lines = [
            {
                "setting": "star",
                "method": method,
                "seed": seed,
                "round": number + 1,
                "test_accuracy": score,
                "bytes_up": 1_000_000,
                "bytes_down": 500_000,
                "seconds": 0.5,
                **({"swept": swept[method]} if method in swept else {}),
            }
            for method, seeds in curves.items()
            for seed, scores in enumerate(seeds)
            for number, score in enumerate(scores)
        ]
        longest = max(line["round"] for line in lines)
        return Raw({"rounds": planned or longest}, lines, finished, {"device": "a machine", "torch": "2"})

    return make
