"""Methods: one paper a file. A method is registered by the line that imports it."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.algorithm import Algorithm, Init
from consilience.algorithms.bl1 import BL1 as BL1
from consilience.algorithms.cfa import CFA as CFA
from consilience.algorithms.cfa_ge import CFAGE as CFAGE
from consilience.algorithms.dane import DANE as DANE
from consilience.algorithms.decdiff import DecDiff as DecDiff
from consilience.algorithms.decdiff_vt import DecDiffVT as DecDiffVT
from consilience.algorithms.dechw import DecHW as DecHW
from consilience.algorithms.dechw import DecHWStar as DecHWStar
from consilience.algorithms.desa import DESA as DESA
from consilience.algorithms.done import DONE as DONE
from consilience.algorithms.dpsgd import DPSGD as DPSGD
from consilience.algorithms.fagh import FAGH as FAGH
from consilience.algorithms.fedavg import FedAvg as FedAvg
from consilience.algorithms.fedavgm import FedAvgM as FedAvgM
from consilience.algorithms.fedcurv import FedCurv as FedCurv
from consilience.algorithms.feddane import FedDANE as FedDANE
from consilience.algorithms.feddc import FedDC as FedDC
from consilience.algorithms.feddyn import FedDyn as FedDyn
from consilience.algorithms.fedexp import FedExP as FedExP
from consilience.algorithms.fedga import FedGA as FedGA
from consilience.algorithms.fedlin import FedLin as FedLin
from consilience.algorithms.fedma import FedMA as FedMA
from consilience.algorithms.fednl import FedNL as FedNL
from consilience.algorithms.fednova import FedNova as FedNova
from consilience.algorithms.fedopt import FedAdagrad as FedAdagrad
from consilience.algorithms.fedopt import FedAdam as FedAdam
from consilience.algorithms.fedopt import FedYogi as FedYogi
from consilience.algorithms.fedprox import FedProx as FedProx
from consilience.algorithms.fedsgd import FedSGD as FedSGD
from consilience.algorithms.fedsso import FedSSO as FedSSO
from consilience.algorithms.fisher_merge import FisherMerge as FisherMerge
from consilience.algorithms.gamf import GAMF as GAMF
from consilience.algorithms.giant import GIANT as GIANT
from consilience.algorithms.gradient_tracking import GradientTracking as GradientTracking
from consilience.algorithms.hwa import HWA as HWA
from consilience.algorithms.kfac_weighted import KFACWeighted as KFACWeighted
from consilience.algorithms.local import Local as Local
from consilience.algorithms.moon import MOON as MOON
from consilience.algorithms.pfedme import PFedMe as PFedMe
from consilience.algorithms.scaffold import Scaffold as Scaffold
from consilience.algorithms.swa import SWA as SWA
from consilience.plugins import registry

METHODS = registry(globals(), Algorithm, "method")
"""The methods, by the names that configurations use."""


@dataclass(frozen=True)
class Alias:
    """Another name for a method on a graph, which also says how models start."""

    method: str
    """The name of the method."""
    init: Init
    """How models start under this name."""


ALIASES = {"dechetero": Alias("fedavg", "different"), "dechomo": Alias("fedavg", "common")}
"""The names that the DecHW paper has for FedAvg on a graph."""
