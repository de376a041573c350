"""What is to be learned: one problem a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.plugins import registry
from consilience.problems.base import Metric as Metric
from consilience.problems.base import Problem as Problem
from consilience.problems.classification import Classification as Classification
from consilience.problems.multi_label import MultiLabel as MultiLabel
from consilience.problems.next_token import NextToken as NextToken
from consilience.problems.regression import Regression as Regression

PROBLEMS = registry(globals(), Problem, "problem")
