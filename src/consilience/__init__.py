"""Consilience: federated learning that weighs each client's parameters by evidence.

import consilience as cs
result = cs.run(cs.HWA(), data="mnist-sample", clients=10, rounds=20)

Names are loaded when they are first used, so that `import consilience` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from consilience.version import __version__

if TYPE_CHECKING:
    from consilience.algorithm import Algorithm, Inbox, Phase, Setting
    from consilience.algorithms.dechw import DecHW, DecHWStar
    from consilience.algorithms.fagh import FAGH
    from consilience.algorithms.fedavg import FedAvg
    from consilience.algorithms.fedcurv import FedCurv
    from consilience.algorithms.fedprox import FedProx
    from consilience.algorithms.fedsgd import FedSGD
    from consilience.algorithms.hwa import HWA
    from consilience.algorithms.local import Local
    from consilience.algorithms.scaffold import Scaffold
    from consilience.algorithms.swa import SWA
    from consilience.api import run
    from consilience.client import Client, Trained
    from consilience.data.dataset import Dataset
    from consilience.errors import UserError
    from consilience.experiment import Listener, Result, resume
    from consilience.method import Composed, Method, Parts
    from consilience.objectives.base import Objective, Pass
    from consilience.rules.base import Rule
    from consilience.server_steps.base import ServerStep
    from consilience.types import Batch, Params, State

_HOMES = {
    "algorithm": ("Algorithm", "Inbox", "Phase", "Setting"),
    "algorithms.dechw": ("DecHW", "DecHWStar"),
    "algorithms.fagh": ("FAGH",),
    "algorithms.fedavg": ("FedAvg",),
    "algorithms.fedcurv": ("FedCurv",),
    "algorithms.fedprox": ("FedProx",),
    "algorithms.fedsgd": ("FedSGD",),
    "algorithms.hwa": ("HWA",),
    "algorithms.local": ("Local",),
    "algorithms.scaffold": ("Scaffold",),
    "algorithms.swa": ("SWA",),
    "api": ("run",),
    "client": ("Client", "Trained"),
    "data.dataset": ("Dataset",),
    "errors": ("UserError",),
    "experiment": ("Listener", "Result", "resume"),
    "method": ("Composed", "Method", "Parts"),
    "objectives.base": ("Objective", "Pass"),
    "rules.base": ("Rule",),
    "server_steps.base": ("ServerStep",),
    "types": ("Batch", "Params", "State"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "FAGH",
    "HWA",
    "SWA",
    "Algorithm",
    "Batch",
    "Client",
    "Composed",
    "Dataset",
    "DecHW",
    "DecHWStar",
    "FedAvg",
    "FedCurv",
    "FedProx",
    "FedSGD",
    "Inbox",
    "Listener",
    "Local",
    "Method",
    "Objective",
    "Params",
    "Parts",
    "Pass",
    "Phase",
    "Result",
    "Rule",
    "Scaffold",
    "ServerStep",
    "Setting",
    "State",
    "Trained",
    "UserError",
    "__version__",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'consilience' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"consilience.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
