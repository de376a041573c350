"""How a hub weighs what it hears: one idea a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.plugins import registry
from consilience.rules.base import Rule as Rule
from consilience.rules.bounded_move import BoundedMove as BoundedMove
from consilience.rules.by_data import ByData as ByData
from consilience.rules.consensus import Consensus as Consensus
from consilience.rules.fisher_merge import FisherWeighted as FisherWeighted
from consilience.rules.gaussianity import Gaussianity as Gaussianity
from consilience.rules.geometric_median import GeometricMedian as GeometricMedian
from consilience.rules.graduated_assignment import GraduatedAssignment as GraduatedAssignment
from consilience.rules.hessian_weighted import HessianWeighted as HessianWeighted
from consilience.rules.kfac_weighted import KroneckerWeighted as KroneckerWeighted
from consilience.rules.krum import Krum as Krum
from consilience.rules.median import Median as Median
from consilience.rules.normalised_steps import NormalisedSteps as NormalisedSteps
from consilience.rules.trimmed_mean import TrimmedMean as TrimmedMean

RULES = registry(globals(), Rule, "rule")
"""The rules, by the names that configurations use."""
