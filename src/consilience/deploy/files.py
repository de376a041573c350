"""Files that describe a federation, as members get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.config import Config
from consilience.config.config import read_config
from consilience.config.files import read_values
from consilience.data import Dataset, load
from consilience.deploy.agreeing import Agreement
from consilience.errors import UserError, kind_of
from consilience.plain import read_yaml


def described(agreement: Agreement) -> dict[str, Any]:
    """The values of a file from which every member makes the same terms, without anybody's data."""
    arm, terms = agreement.arm, agreement.terms
    settled = arm.config.model_copy(
        update={
            "seeds": [terms.seed],
            "clients": terms.population,
            "compare": [],
            "deploy": arm.config.deploy.model_copy(update={"facts": agreement.facts}),
        }
    )
    return settled.written()


def federation_of(path: Path, *, here: bool, device: str | None = None) -> Config:
    """The configuration in a member's file.

    Args:
        path: The file.
        here: Whether the data that it names are on this machine and wanted; else what it says about their
            form is enough, and they are neither looked for nor loaded.
        device: The device to work on, in place of the one that it names.
    """
    values = read_values(path)
    deploy = values.get("deploy") or {}
    if not isinstance(deploy, dict):
        raise UserError(f"{path}: deploy: expected keys and values, not {kind_of(deploy)}")
    if here:
        deploy.pop("facts", None)
        values["deploy"] = deploy
    elif deploy.get("facts") is not None:
        values.pop("data", None)
    if device is not None:
        values["device"] = device
    return read_config(values, str(path))


def own_data(text: str) -> Dataset:
    """The data set of a member's own that some text stands for, in the words of `data` in a configuration."""
    section = read_config({"data": read_yaml(text, "--data")}, "--data").data
    return section.own or load(section.name)
