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
    from consilience.algorithms.cfa import CFA
    from consilience.algorithms.cfa_ge import CFAGE
    from consilience.algorithms.decdiff import DecDiff
    from consilience.algorithms.decdiff_vt import DecDiffVT
    from consilience.algorithms.dechw import DecHW, DecHWStar
    from consilience.algorithms.desa import DESA
    from consilience.algorithms.dpsgd import DPSGD
    from consilience.algorithms.fagh import FAGH
    from consilience.algorithms.fedadagrad import FedAdagrad
    from consilience.algorithms.fedadam import FedAdam
    from consilience.algorithms.fedavg import FedAvg
    from consilience.algorithms.fedavgm import FedAvgM
    from consilience.algorithms.fedcurv import FedCurv
    from consilience.algorithms.feddc import FedDC
    from consilience.algorithms.feddyn import FedDyn
    from consilience.algorithms.fedexp import FedExP
    from consilience.algorithms.fedga import FedGA
    from consilience.algorithms.fedlin import FedLin
    from consilience.algorithms.fednova import FedNova
    from consilience.algorithms.fedprox import FedProx
    from consilience.algorithms.fedsgd import FedSGD
    from consilience.algorithms.fedyogi import FedYogi
    from consilience.algorithms.gradient_tracking import GradientTracking
    from consilience.algorithms.hwa import HWA
    from consilience.algorithms.local import Local
    from consilience.algorithms.moon import MOON
    from consilience.algorithms.pfedme import PFedMe
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
    from consilience.transforms.base import Transform
    from consilience.transforms.clipped import Clipped
    from consilience.transforms.compressed import Compressed
    from consilience.transforms.noised import Noised
    from consilience.transforms.until import Until
    from consilience.types import Batch, Params, State

_HOMES = {
    "algorithm": ("Algorithm", "Inbox", "Phase", "Setting"),
    "algorithms.cfa": ("CFA",),
    "algorithms.cfa_ge": ("CFAGE",),
    "algorithms.decdiff": ("DecDiff",),
    "algorithms.decdiff_vt": ("DecDiffVT",),
    "algorithms.dechw": ("DecHW", "DecHWStar"),
    "algorithms.desa": ("DESA",),
    "algorithms.dpsgd": ("DPSGD",),
    "algorithms.fagh": ("FAGH",),
    "algorithms.fedadagrad": ("FedAdagrad",),
    "algorithms.fedadam": ("FedAdam",),
    "algorithms.fedavg": ("FedAvg",),
    "algorithms.fedavgm": ("FedAvgM",),
    "algorithms.fedcurv": ("FedCurv",),
    "algorithms.feddc": ("FedDC",),
    "algorithms.feddyn": ("FedDyn",),
    "algorithms.fedexp": ("FedExP",),
    "algorithms.fedga": ("FedGA",),
    "algorithms.fedlin": ("FedLin",),
    "algorithms.fednova": ("FedNova",),
    "algorithms.fedprox": ("FedProx",),
    "algorithms.fedsgd": ("FedSGD",),
    "algorithms.fedyogi": ("FedYogi",),
    "algorithms.gradient_tracking": ("GradientTracking",),
    "algorithms.hwa": ("HWA",),
    "algorithms.local": ("Local",),
    "algorithms.moon": ("MOON",),
    "algorithms.pfedme": ("PFedMe",),
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
    "transforms.base": ("Transform",),
    "transforms.clipped": ("Clipped",),
    "transforms.compressed": ("Compressed",),
    "transforms.noised": ("Noised",),
    "transforms.until": ("Until",),
    "types": ("Batch", "Params", "State"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CFA",
    "CFAGE",
    "DESA",
    "DPSGD",
    "FAGH",
    "HWA",
    "MOON",
    "SWA",
    "Algorithm",
    "Batch",
    "Client",
    "Clipped",
    "Composed",
    "Compressed",
    "Dataset",
    "DecDiff",
    "DecDiffVT",
    "DecHW",
    "DecHWStar",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCurv",
    "FedDC",
    "FedDyn",
    "FedExP",
    "FedGA",
    "FedLin",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "GradientTracking",
    "Inbox",
    "Listener",
    "Local",
    "Method",
    "Noised",
    "Objective",
    "PFedMe",
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
    "Transform",
    "Until",
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
