"""From YAML to objects: what a configuration may say, and how it is read."""

from __future__ import annotations

from consilience.config.config import Config as Config
from consilience.config.config import read_config as read_config
from consilience.config.files import load_config as load_config
