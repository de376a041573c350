"""What a hub does with what it merged: one idea a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.plugins import registry
from consilience.server_steps.adaptive import Adaptive as Adaptive
from consilience.server_steps.add_drift import AddDrift as AddDrift
from consilience.server_steps.base import ServerStep as ServerStep
from consilience.server_steps.extrapolate import Extrapolate as Extrapolate
from consilience.server_steps.momentum import Momentum as Momentum
from consilience.server_steps.relax import Relax as Relax

SERVER_STEPS = registry(globals(), ServerStep, "server step")
"""The server steps, by the names that configurations use."""
