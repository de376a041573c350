"""Whole runs: what to run, its files, what came out."""

from __future__ import annotations

from consilience.experiment.execution import run as run
from consilience.experiment.extending import resume as resume
from consilience.experiment.planning import Arm as Arm
from consilience.experiment.planning import plan as plan
from consilience.experiment.planning import split as split
from consilience.experiment.result import Listener as Listener
from consilience.experiment.result import Result as Result
from consilience.experiment.stopping import RoundState as RoundState
