"""Names of everything a configuration can choose."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.algorithm import Algorithm, Init
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
from consilience.objectives.base import Objective
from consilience.objectives.control_variates import ControlVariates
from consilience.objectives.fisher_elastic import FisherElastic
from consilience.objectives.proximal import Proximal
from consilience.rules.base import Rule
from consilience.rules.by_data import ByData
from consilience.rules.gaussianity import Gaussianity
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.server_steps.base import ServerStep
from consilience.server_steps.relax import Relax
from consilience.transforms.base import Transform

METHODS: dict[str, type[Algorithm]] = {
    method.name: method
    for method in (Local, FedSGD, FedAvg, FedProx, FedCurv, Scaffold, HWA, FAGH, SWA, DecHW, DecHWStar)
}

OBJECTIVES: dict[str, type[Objective]] = {
    part.name: part for part in (Objective, Proximal, FisherElastic, ControlVariates)
}
RULES: dict[str, type[Rule]] = {part.name: part for part in (ByData, HessianWeighted, Gaussianity)}
SERVER_STEPS: dict[str, type[ServerStep]] = {part.name: part for part in (ServerStep, Relax)}

TRANSFORMS: dict[str, type[Transform]] = {}


@dataclass(frozen=True)
class Alias:
    """Another name for a method in a certain setting."""

    method: str
    init: Init
    """How models start under this name."""


ALIASES = {"dechetero": Alias("fedavg", "different"), "dechomo": Alias("fedavg", "common")}
"""FedAvg on a graph, as the DecHW paper calls it."""
