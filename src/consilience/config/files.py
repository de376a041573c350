"""Configuration files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.config.config import Config, read_config
from consilience.config.overrides import apply, check_effect
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.models.own import names_unwritten
from consilience.plain import MOST_CHARACTERS, read_yaml
from consilience.reading import content


def load_config(
    path: Path, overrides: Sequence[str] = (), own: Dataset | None = None, model: object = None
) -> Config:
    """The configuration in a file, after `key=value` overrides (dotted keys, YAML values).

    `own` is a data set from Python, in place of a known one, and `model` one that no file can name.
    """
    values = read_values(path)
    for number, override in enumerate(overrides):
        check_effect(values, override)
        apply(values, override, {earlier.partition("=")[0] for earlier in overrides[:number]})
    return with_given(values, path, own, model)


def with_given(values: dict[str, Any], path: Path, own: Dataset | None, model: object) -> Config:
    """The configuration of a file's values, with data and a model that it cannot name; see `load_config`."""
    compared = values.get("compare")
    for one in () if model is None else (values, *(compared if isinstance(compared, list) else ())):
        if isinstance(one, dict) and names_unwritten(one.get("model")):
            one["model"] = model
    return read_config(values, str(path), own)


def read_values(path: Path) -> dict[str, Any]:
    """The keys and values of a file, as they stand there."""
    try:
        text = content(path, MOST_CHARACTERS).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid YAML: it is not text in UTF-8") from None
    except ValueError as error:
        raise UserError(f"cannot read {path}: {error}") from None
    values = read_yaml(text, str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected keys and values, found {type(values).__name__}")
    return values
