"""Configuration files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from consilience.config.config import Config, read_config
from consilience.config.overrides import apply, check_effect
from consilience.data.dataset import Dataset
from consilience.errors import UserError


def load_config(path: Path, overrides: Sequence[str] = (), own: Dataset | None = None) -> Config:
    """The configuration in a file, after `key=value` overrides (dotted keys, YAML values).

    `own` is a data set from Python, in place of a known one.
    """
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date that does not exist, say
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected keys and values, found {type(values).__name__}")
    for number, override in enumerate(overrides):
        check_effect(values, override)
        apply(values, override, {earlier.partition("=")[0] for earlier in overrides[:number]})
    return read_config(values, str(path), own)
