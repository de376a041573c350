"""How some keys of a configuration that hold plain values are read."""

from __future__ import annotations

import logging
from pathlib import Path

from consilience.errors import UserError

LOG = logging.getLogger("consilience")


def read_seeds(value: object) -> object:
    """The list of seeds; a number alone is one of them, and says so where it could be meant as a count."""
    if not isinstance(value, int):
        return value
    if value > 1:
        LOG.warning("seeds: %s is one seed; for %s of them write seeds: %s", value, value, [*range(value)])
    return [value]


def read_init(value: object) -> object:
    """How models start, or where the file of weights is."""
    if value is None or isinstance(value, str | Path):
        return value if value is None else str(value)
    raise UserError(f"init: common, different or the path of a file of weights, not a {type(value).__name__}")


def read_out(value: object) -> object:
    """The folder for runs, which has a name."""
    if isinstance(value, str) and not value.strip():
        raise UserError("out: a folder is missing; leave it out for runs")
    return value
