"""Local optimisers: one a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.learning.solvers.adam import Adam as Adam
from consilience.learning.solvers.base import Solver as Solver
from consilience.learning.solvers.sgd import SGD as SGD
from consilience.types import registry

SOLVERS = registry(globals(), Solver)
