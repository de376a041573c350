"""Scores beside those of a problem: one idea a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.metrics.base import Score as Score
from consilience.metrics.macro import F1Macro as F1Macro
from consilience.metrics.macro import PrecisionMacro as PrecisionMacro
from consilience.metrics.macro import RecallMacro as RecallMacro
from consilience.metrics.top import Top as Top
from consilience.metrics.whole import Whole as Whole
from consilience.plugins import registry

METRICS = registry(globals(), Score, "metric")
