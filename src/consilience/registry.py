"""Names of everything a configuration can choose."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.algorithm import Algorithm, Init
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
from consilience.objectives.aligned_start import AlignedStart
from consilience.objectives.base import Objective
from consilience.objectives.contrastive import Contrastive
from consilience.objectives.control_variates import ControlVariates
from consilience.objectives.drift import DriftVariable, DynamicRegulariser
from consilience.objectives.fisher_elastic import FisherElastic
from consilience.objectives.fresh_gradients import FreshGradients
from consilience.objectives.proximal import Proximal
from consilience.objectives.virtual_teacher import VirtualTeacher
from consilience.rules.base import Rule
from consilience.rules.bounded_move import BoundedMove
from consilience.rules.by_data import ByData
from consilience.rules.consensus import Consensus
from consilience.rules.gaussianity import Gaussianity
from consilience.rules.geometric_median import GeometricMedian
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.rules.krum import Krum
from consilience.rules.median import Median
from consilience.rules.normalised_steps import NormalisedSteps
from consilience.rules.trimmed_mean import TrimmedMean
from consilience.server_steps.adaptive import Adaptive
from consilience.server_steps.add_drift import AddDrift
from consilience.server_steps.base import ServerStep
from consilience.server_steps.extrapolate import Extrapolate
from consilience.server_steps.momentum import Momentum
from consilience.server_steps.relax import Relax
from consilience.transforms.base import Transform
from consilience.transforms.clipped import Clipped
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised

METHODS: dict[str, type[Algorithm]] = {
    method.name: method
    for method in (
        Local,
        FedSGD,
        FedAvg,
        DPSGD,
        CFA,
        CFAGE,
        DecDiff,
        DecDiffVT,
        FedProx,
        FedCurv,
        Scaffold,
        FedNova,
        FedDC,
        FedDyn,
        MOON,
        FedGA,
        FedLin,
        GradientTracking,
        HWA,
        FAGH,
        SWA,
        DecHW,
        DecHWStar,
        FedAvgM,
        FedAdagrad,
        FedAdam,
        FedYogi,
        FedExP,
        PFedMe,
        DESA,
    )
}

OBJECTIVES: dict[str, type[Objective]] = {
    part.name: part
    for part in (
        Objective,
        Proximal,
        FisherElastic,
        ControlVariates,
        DriftVariable,
        DynamicRegulariser,
        Contrastive,
        AlignedStart,
        FreshGradients,
        VirtualTeacher,
    )
}
RULES: dict[str, type[Rule]] = {
    part.name: part
    for part in (
        ByData,
        Consensus,
        BoundedMove,
        NormalisedSteps,
        HessianWeighted,
        Gaussianity,
        Median,
        TrimmedMean,
        GeometricMedian,
        Krum,
    )
}
SERVER_STEPS: dict[str, type[ServerStep]] = {
    part.name: part for part in (ServerStep, Relax, Momentum, Adaptive, Extrapolate, AddDrift)
}

TRANSFORMS: dict[str, type[Transform]] = {part.name: part for part in (Noised, Clipped, Compressed)}


@dataclass(frozen=True)
class Alias:
    """Another name for a method in a certain setting."""

    method: str
    init: Init
    """How models start under this name."""


ALIASES = {"dechetero": Alias("fedavg", "different"), "dechomo": Alias("fedavg", "common")}
"""FedAvg on a graph, as the DecHW paper calls it."""
