"""A part is one file and one line: whatever a folder of parts defines is in its registry."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest

from consilience.algorithm import Algorithm
from consilience.algorithms import METHODS
from consilience.data.partitioners import PARTITIONERS, Partitioner
from consilience.data.sets import SOURCES, Source
from consilience.graphs import TOPOLOGIES, Topology
from consilience.learning.augmentations import AUGMENTATIONS, Augmentation
from consilience.learning.schedules import SCHEDULES, Schedule
from consilience.learning.solvers import SOLVERS, Solver
from consilience.metrics import METRICS, Score
from consilience.models import MODELS, ModelSpec
from consilience.objectives import OBJECTIVES, Objective
from consilience.plugins import registry
from consilience.problems import PROBLEMS, Problem
from consilience.rules import RULES, Rule
from consilience.server_steps import SERVER_STEPS, ServerStep
from consilience.tracking import TRACKERS, Tracker
from consilience.transforms import TRANSFORMS, Transform

FOLDERS: dict[str, tuple[type, Mapping[str, type]]] = {
    "algorithms": (Algorithm, METHODS),
    "data.partitioners": (Partitioner, PARTITIONERS),
    "graphs": (Topology, TOPOLOGIES),
    "learning.augmentations": (Augmentation, AUGMENTATIONS),
    "learning.schedules": (Schedule, SCHEDULES),
    "learning.solvers": (Solver, SOLVERS),
    "metrics": (Score, METRICS),
    "models": (ModelSpec, MODELS),
    "objectives": (Objective, OBJECTIVES),
    "rules": (Rule, RULES),
    "problems": (Problem, PROBLEMS),
    "server_steps": (ServerStep, SERVER_STEPS),
    "tracking": (Tracker, TRACKERS),
    "transforms": (Transform, TRANSFORMS),
}
WITHIN_A_METHOD = {"dechw-frozen", "synthetic_anchors"}
"""Parts that make no sense alone, and that no configuration can name."""


def modules(folder: str) -> Iterator[ModuleType]:
    package = importlib.import_module(f"consilience.{folder}")
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{found.name}")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_part_of_a_folder_is_registered(folder: str):
    kind, registered = FOLDERS[folder]
    defined = [
        part
        for module in modules(folder)
        for part in vars(module).values()
        if isinstance(part, type) and issubclass(part, kind) and part.__module__ == module.__name__
    ]
    named = {part.name: part for part in defined if isinstance(vars(part).get("name"), str)}
    assert {name: part for name, part in named.items() if name not in WITHIN_A_METHOD} == registered


def test_every_data_set_is_registered():
    defined = {
        one.name: one
        for module in modules("data.sets")
        for one in vars(module).values()
        if isinstance(one, Source)
    }
    assert defined == SOURCES


def test_a_registry_holds_the_named_parts_of_its_kind():
    class Drink:
        name: str

    class Hot(Drink):
        pass

    class Tea(Hot):
        name = "tea"

    class GreenTea(Tea):
        pass

    class Bread:
        name = "bread"

    module = {"Drink": Drink, "Hot": Hot, "Tea": Tea, "GreenTea": GreenTea, "Bread": Bread, "cups": 2}
    assert registry(module, Drink, "drink") == {"tea": Tea}
