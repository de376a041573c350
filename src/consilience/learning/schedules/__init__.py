"""How learning rates change over a run, or within a local training: one idea a file."""

from __future__ import annotations

from consilience.learning.schedules.base import Schedule as Schedule
from consilience.learning.schedules.constant import Constant as Constant
from consilience.learning.schedules.cosine import Cosine as Cosine
from consilience.learning.schedules.exponential import Exponential as Exponential
from consilience.learning.schedules.scheduled import Scheduled as Scheduled
from consilience.learning.schedules.scheduled import Stepped as Stepped
from consilience.learning.schedules.step import StepDecay as StepDecay
from consilience.plugins import registry

SCHEDULES = registry(globals(), Schedule, "schedule")
