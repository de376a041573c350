"""How a client trains: one idea a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.objectives.aligned_start import AlignedStart as AlignedStart
from consilience.objectives.base import Objective as Objective
from consilience.objectives.contrastive import Contrastive as Contrastive
from consilience.objectives.control_variates import ControlVariates as ControlVariates
from consilience.objectives.drift import DriftVariable as DriftVariable
from consilience.objectives.drift import DynamicRegulariser as DynamicRegulariser
from consilience.objectives.fisher_elastic import FisherElastic as FisherElastic
from consilience.objectives.fresh_gradients import FreshGradients as FreshGradients
from consilience.objectives.gradient_shift import GradientShift as GradientShift
from consilience.objectives.proximal import Proximal as Proximal
from consilience.objectives.virtual_teacher import VirtualTeacher as VirtualTeacher
from consilience.plugins import registry

# `SyntheticAnchors` is not among them: only DeSA has the anchors that it needs.
OBJECTIVES = registry(globals(), Objective, "objective")
"""The objectives, by the names that configurations use."""
