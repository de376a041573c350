"""The inventory: what the package holds, as plain values.

Every method is run to count its bytes, so that it takes seconds to make. A command that lists things cannot
wait so long: `make listings` writes the inventory to the file that is read there, and a test checks it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast, get_args

import torch

from consilience.algorithm import Algorithm, Conditions, Family
from consilience.algorithms import ALIASES, METHODS
from consilience.data import Dataset
from consilience.data.partition import Partition
from consilience.data.partitioners import PARTITIONERS
from consilience.data.sets import SOURCES, Source
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.graphs import TOPOLOGIES
from consilience.graphs.complete import Complete
from consilience.graphs.star import Star
from consilience.learning.augmentations import AUGMENTATIONS
from consilience.learning.schedules import SCHEDULES
from consilience.learning.solvers import SGD, SOLVERS
from consilience.metrics import METRICS
from consilience.models import MODELS
from consilience.models.logistic import Logistic
from consilience.models.mlp import MLP
from consilience.objectives import OBJECTIVES
from consilience.plugins import Registry, announced, called, package_of
from consilience.problems import PROBLEMS
from consilience.rules import RULES
from consilience.server_steps import SERVER_STEPS
from consilience.tracking import TRACKERS
from consilience.transforms import TRANSFORMS
from consilience.wire import HEADER

REFERENCE, LINEAR = MLP(), Logistic()
"""The model for which bytes of a round are given, and that for methods of linear models alone."""

PARTS: dict[str, Registry[type[Any]]] = {
    "objectives: how a client trains": OBJECTIVES,
    "rules: how a hub weighs what it hears": RULES,
    "server steps: what a hub does with the result": SERVER_STEPS,
    "transforms: what happens to messages": TRANSFORMS,
}
"""The parts of which other methods can be composed."""


KINDS: tuple[Registry[Any], ...] = (
    METHODS,
    *PARTS.values(),
    MODELS,
    PARTITIONERS,
    TOPOLOGIES,
    PROBLEMS,
    SOLVERS,
    SCHEDULES,
    AUGMENTATIONS,
    METRICS,
    SOURCES,
    TRACKERS,
)
"""All that plugins can add to."""


def make_inventory() -> dict[str, Any]:
    """Families, methods, parts by kind, and models, with nothing but what JSON has."""
    inventory = {
        "families": list(get_args(Family)),
        "methods": [_method(name, cls) for name, cls in METHODS.builtin.items()],
        "parts": {
            kind: [_part(name, cls) for name, cls in parts.builtin.items()] for kind, parts in PARTS.items()
        },
        "models": [_part(name, cls) for name, cls in MODELS.builtin.items()],
    }
    return cast(dict[str, Any], json.loads(json.dumps(inventory)))


def plugin_inventory() -> tuple[list[dict[str, Any]], list[str]]:
    """What plugins add, with kind and package; and a line for each that cannot be used."""
    entries, faults = [], []
    for plugin in announced():
        try:
            kinds = [kind for kind in KINDS if kind.means(plugin)]
            if not kinds:
                raise UserError(f"plugin {called(plugin)}: is no part of any kind")
            for kind in kinds:
                entries.append(_plugin(plugin.name, kind, package_of(plugin), called(plugin)))
        except UserError as error:
            faults.append(str(error))
    return entries, faults


def _plugin(name: str, registry: Registry[Any], package: str, who: str) -> dict[str, Any]:
    part, known = registry[name], {"kind": registry.kind, "package": package}
    if registry is not METHODS:
        return {**(_part(name, part) if isinstance(part, type) else _source(part)), **known}
    try:
        return {**_method(name, part), **known}
    except Exception as error:  # whatever the code of others does
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"plugin {who}: a round of it fails ({reason})") from error


def _source(source: Source) -> dict[str, Any]:
    return {"name": source.name, "summary": source.description, "parameters": {}}


def write_inventory(path: Path) -> None:
    """Write the inventory as JSON."""
    path.write_text(json.dumps(make_inventory(), indent=2) + "\n")


def _method(name: str, cls: type[Algorithm]) -> dict[str, Any]:
    """One method: its paper, parameters with defaults, bytes of a round, where it runs."""
    up, down = bytes_of_a_round(cls())
    return {
        "name": name,
        "aliases": [alias for alias, target in ALIASES.items() if target.method == name],
        "family": cls.family,
        "summary": _summary(cls),
        "paper": cls.paper,
        "formula": cls.formula,
        "choose": cls.choose,
        "parameters": _parameters(cls),
        "linear": cls().linear_only(),
        "sends": [group for group in up if group != HEADER],
        "bytes_up": sum(up.values()),
        "bytes_down": sum(down.values()),
        "star": cls().refuse(_conditions(graph=False)) is None,
        "graph": cls().refuse(_conditions(graph=True)) is None,
    }


def _part(name: str, cls: type) -> dict[str, Any]:
    return {"name": name, "summary": _summary(cls), "parameters": _parameters(cls)}


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _parameters(cls: type) -> dict[str, dict[str, Any]]:
    return {
        field.name: {
            "default": None if field.default is dataclasses.MISSING else field.default,
            "type": str(field.type),
        }
        for field in dataclasses.fields(cast(Any, cls))
    }


def _conditions(*, graph: bool) -> Conditions:
    return Conditions(graph, SGD(), epochs=1, holdout=True, unreliable=False)


def bytes_of_a_round(algorithm: Algorithm) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes that a client sends and receives in a round, by group, counted in one of the reference model.

    Where a method needs a graph, they are those of a node for each neighbour.
    """
    blank = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    targets = torch.tensor([0, 1, 2, 3])
    dataset = Dataset("blank", blank, targets, blank, targets, outputs=10)
    rows = targets.numpy()
    scene = Scene(
        dataset=dataset,
        build=lambda: (LINEAR if algorithm.linear_only() else REFERENCE).build((1, 28, 28), 10),
        partitions={0: Partition((rows[:1], rows[1:2]), (rows[2:3], rows[3:]), {}, 0)},
        topology=Complete() if algorithm.refuse(_conditions(graph=False)) else Star(),
        work=LocalWork(1, None, 1),
        participation=2,
        executor="sequential",  # two steps are not worth a program
    )
    simulation = simulate(scene, [(algorithm.quick(), SGD())])
    simulation.step(evaluate=False)  # the first round may hold an exchange that happens once
    record = simulation.step(evaluate=False)[0]
    half = [{group: size // 2 for group, size in way.items()} for way in (record.bytes_up, record.bytes_down)]
    return half[0], half[1]
