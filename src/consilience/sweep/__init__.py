"""Many runs from one file: a grid of configurations over any keys, cell by cell, wherever there is room."""

from __future__ import annotations

from consilience.sweep.cells import Cell as Cell
from consilience.sweep.places import Here as Here
from consilience.sweep.places import Place as Place
from consilience.sweep.places import Watcher as Watcher
from consilience.sweep.reading import Study as Study
from consilience.sweep.reading import read_study as read_study
from consilience.sweep.running import run as run
from consilience.sweep.table import Findings as Findings
