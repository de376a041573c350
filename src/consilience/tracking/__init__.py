"""Who is told how a run goes: one service a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.plugins import registry
from consilience.tracking.base import Session as Session
from consilience.tracking.base import Tracker as Tracker
from consilience.tracking.mlflow import MLflow as MLflow
from consilience.tracking.tensorboard import TensorBoard as TensorBoard
from consilience.tracking.wandb import WandB as WandB

TRACKERS = registry(globals(), Tracker, "tracker")
"""The trackers, by the names that configurations use."""
