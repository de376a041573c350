"""Whole runs: what to run, its files, what came out."""

from __future__ import annotations

from consilience.experiment.plan import Arm as Arm
from consilience.experiment.plan import plan as plan
from consilience.experiment.plan import split as split
from consilience.experiment.result import Listener as Listener
from consilience.experiment.result import Result as Result
from consilience.experiment.run import resume as resume
from consilience.experiment.run import run as run
