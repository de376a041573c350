"""Listings of what there is: methods, models, data sets."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
from rich.table import Table

from consilience.algorithm import Algorithm, Setting
from consilience.data import Dataset, describe
from consilience.data.partition import Partition
from consilience.engine.build import Scene, simulate
from consilience.engine.cohort import LocalWork
from consilience.models import MODELS
from consilience.models.mlp import MLP
from consilience.registry import ALIASES, METHODS
from consilience.report.table import human_bytes
from consilience.solver import SGD
from consilience.topology import Star

REFERENCE = MLP()
"""The model for which a listing gives the bytes of a round."""


def list_methods() -> list[dict[str, Any]]:
    """Every method: name, paper, parameters with defaults, bytes of a round, where it runs."""
    return [_describe(name, cls) for name, cls in METHODS.items()]


def _describe(name: str, cls: type[Algorithm]) -> dict[str, Any]:
    up, down = bytes_of_a_round(cls())
    return {
        "name": name,
        "aliases": [alias for alias, target in ALIASES.items() if target.method == name],
        "summary": (cls.__doc__ or "").strip().splitlines()[0],
        "paper": cls.paper,
        "parameters": {
            field.name: {"default": field.default, "type": str(field.type)}
            for field in dataclasses.fields(cast(Any, cls))
        },
        "bytes_up": up,
        "bytes_down": down,
        "star": cls().refuse(_setting(graph=False)) is None,
        "graph": cls().refuse(_setting(graph=True)) is None,
    }


def _setting(*, graph: bool) -> Setting:
    return Setting(graph, SGD(), epochs=1, holdout=True, unreliable=False)


def bytes_of_a_round(algorithm: Algorithm) -> tuple[int, int]:
    """Bytes that one client sends and receives in a round, counted in a real one of the reference model."""
    blank = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    targets = torch.tensor([0, 1, 2, 3])
    dataset = Dataset("blank", blank, targets, blank, targets, classes=10)
    rows = targets.numpy()
    scene = Scene(
        dataset=dataset,
        build=lambda: REFERENCE.build((1, 28, 28), 10),
        partitions={0: Partition((rows[:1], rows[1:2]), (rows[2:3], rows[3:]), {}, 0)},
        topology=Star(),
        work=LocalWork(1, None, 1),
        participation=2,
    )
    simulation = simulate(scene, [(algorithm, SGD())])
    simulation.step(evaluate=False)  # the first round may hold an exchange that happens once
    record = simulation.step(evaluate=False)[0]
    return sum(record.bytes_up.values()) // 2, sum(record.bytes_down.values()) // 2


def method_table(entries: list[dict[str, Any]]) -> Table:
    """The methods as a table."""
    table = Table(title="Methods (bytes per client and round for the 200-200 MLP of 199,210 parameters)")
    for column in ("name", "what it does", "paper", "parameters"):
        table.add_column(column, overflow="fold")
    table.add_column("up", justify="right")
    table.add_column("down", justify="right")
    table.add_column("runs on")
    for entry in entries:
        names = ", ".join([entry["name"], *entry["aliases"]])
        parameters = ", ".join(f"{name}={facts['default']}" for name, facts in entry["parameters"].items())
        places = " ".join(place for place in ("star", "graph") if entry[place])
        up, down = human_bytes(entry["bytes_up"]), human_bytes(entry["bytes_down"])
        table.add_row(names, entry["summary"], entry["paper"], parameters, up, down, places)
    return table


def model_table() -> Table:
    """The models as a table."""
    table = Table(title="Models")
    for column in ("name", "what it is", "options"):
        table.add_column(column)
    for name, cls in MODELS.items():
        options = ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(cast(Any, cls)))
        table.add_row(name, (cls.__doc__ or "").strip().splitlines()[0], options)
    return table


def dataset_table() -> Table:
    """The data sets as a table."""
    table = Table(title="Data sets (get one with `consilience data get NAME`)")
    for column in ("name", "what it is", "classes", "shape", "train + test", "origin", "here"):
        table.add_column(column)
    for listing in describe():
        source = listing.source
        table.add_row(
            source.name,
            source.description,
            str(source.classes),
            "x".join(map(str, source.shape)),
            f"{source.training_rows:,} + {source.test_rows:,}" if source.training_rows else "varies",
            source.licence,
            "yes" if listing.present else "no",
        )
    return table
