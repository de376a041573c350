"""Consilience: federated learning that weighs each client's parameters by evidence.

import consilience as cs
result = cs.run(cs.HWA(), data="mnist-sample", clients=10, rounds=20)

Names are loaded when they are first used, so that `import consilience` is quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if "torch" not in sys.modules:
    # Threads that wait had better sleep: spinning, they take the cores from those that work, and on a busy
    # machine runs took 1.7 to 3 times as long. OpenMP reads this once, when torch loads it; set later, it
    # would only mislead whoever looks at the environment.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from consilience.algorithm import Algorithm as Algorithm
    from consilience.algorithm import Conditions as Conditions
    from consilience.algorithm import Inbox as Inbox
    from consilience.algorithm import Phase as Phase
    from consilience.algorithm import SingleExchange as SingleExchange
    from consilience.algorithm import Wrapper as Wrapper
    from consilience.algorithms import *  # noqa: F403
    from consilience.api import load_model as load_model
    from consilience.api import run as run
    from consilience.client import Client as Client
    from consilience.client import Trained as Trained
    from consilience.data.dataset import Dataset as Dataset
    from consilience.data.partitioners.base import Partitioner as Partitioner
    from consilience.data.sets.base import Source as Source
    from consilience.errors import UserError as UserError
    from consilience.experiment import Listener as Listener
    from consilience.experiment import Result as Result
    from consilience.experiment import RoundState as RoundState
    from consilience.experiment import resume as resume
    from consilience.graphs.base import Graph as Graph
    from consilience.graphs.base import Topology as Topology
    from consilience.learning.solvers.base import Solver as Solver
    from consilience.method import Composed as Composed
    from consilience.method import Method as Method
    from consilience.method import Parts as Parts
    from consilience.metrics import *  # noqa: F403
    from consilience.models.spec import Classifier as Classifier
    from consilience.models.spec import ModelSpec as ModelSpec
    from consilience.objectives import *  # noqa: F403
    from consilience.objectives.base import Pass as Pass
    from consilience.problems import *  # noqa: F403
    from consilience.rules import *  # noqa: F403
    from consilience.server_steps import *  # noqa: F403
    from consilience.transforms import *  # noqa: F403
    from consilience.transforms.until import Until as Until
    from consilience.types import Batch as Batch
    from consilience.types import Params as Params
    from consilience.types import State as State

_HOMES = {
    "algorithm": ("Algorithm", "Conditions", "Inbox", "Phase", "SingleExchange", "Wrapper"),
    "api": ("load_model", "run"),
    "client": ("Client", "Trained"),
    "data.dataset": ("Dataset",),
    "data.partitioners.base": ("Partitioner",),
    "data.sets.base": ("Source",),
    "errors": ("UserError",),
    "experiment": ("Listener", "Result", "RoundState", "resume"),
    "graphs.base": ("Graph", "Topology"),
    "learning.solvers.base": ("Solver",),
    "method": ("Composed", "Method", "Parts"),
    "metrics.base": ("Score",),
    "models.spec": ("Classifier", "ModelSpec"),
    "objectives.base": ("Objective", "Pass"),
    "problems.base": ("Metric", "Problem"),
    "rules.base": ("Rule",),
    "server_steps.base": ("ServerStep",),
    "transforms.base": ("Transform",),
    "transforms.until": ("Until",),
    "types": ("Batch", "Params", "State"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = {
    "algorithms": "METHODS",
    "metrics": "METRICS",
    "objectives": "OBJECTIVES",
    "problems": "PROBLEMS",
    "rules": "RULES",
    "server_steps": "SERVER_STEPS",
    "transforms": "TRANSFORMS",
}
"""Folders of parts, each with the name of its registry; what they register are names here, too."""


def _parts() -> dict[str, type]:
    """Everything that the folders of parts register, by its Python name."""
    registries = [getattr(importlib.import_module(f"consilience.{room}"), _ROOMS[room]) for room in _ROOMS]
    return {part.__name__: part for registry in registries for part in registry.builtin.values()}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"consilience.{_HOME_OF[name]}"), name)
    elif name[:1].isupper() and name in (parts := _parts()):
        value = parts[name]
    elif name == "__all__":
        value = __dir__()
    else:
        raise AttributeError(f"module 'consilience' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_HOME_OF, *_parts(), "__version__"})
