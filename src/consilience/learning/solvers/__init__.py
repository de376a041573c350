"""Local optimisers: one a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.learning.solvers.adam import Adam as Adam
from consilience.learning.solvers.adamw import AdamW as AdamW
from consilience.learning.solvers.base import Solver as Solver
from consilience.learning.solvers.nesterov import Nesterov as Nesterov
from consilience.learning.solvers.rmsprop import RMSprop as RMSprop
from consilience.learning.solvers.sgd import SGD as SGD
from consilience.plugins import registry

SOLVERS = registry(globals(), Solver, "solver")
