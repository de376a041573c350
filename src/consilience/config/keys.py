"""How some keys of a configuration that hold plain values are read."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from consilience.errors import UserError, abridged, kind_of
from consilience.plain import check_plain

LOG = logging.getLogger("consilience")

LONGEST = 255
"""How many bytes the name of a folder may have."""
LIKELY = 100
"""The largest number that is likely to be meant as a count of seeds."""


def read_seeds(value: object) -> object:
    """The list of seeds; a number alone is one of them, and says so where it could be meant as a count."""
    if not isinstance(value, int):
        return value
    if 1 < value <= LIKELY:
        LOG.warning("seeds: %s is one seed; for %s of them write seeds: %s", value, value, [*range(value)])
    return [value]


def read_init(value: object) -> object:
    """How models start, or where the file of weights is."""
    if value is None or (isinstance(value, str | Path) and str(value).strip()):
        return value if value is None else str(value)
    given = abridged(value) if isinstance(value, str) else kind_of(value)
    raise UserError(f"init: common, different or the path of a file of weights, not {given}")


def read_participation(value: object) -> object:
    """A share, or a count, of clients: NumPy's whole numbers are counts, too."""
    return int(value) if isinstance(value, np.integer) else value


def read_out(value: object) -> object:
    """The folder for runs, which has a name."""
    if not isinstance(value, str | Path):
        raise UserError(f"out: a folder is wanted, not {abridged(value)}")
    if not str(value).strip():
        raise UserError("out: a folder is missing; leave it out for runs")
    check_plain(str(value), ("out",))
    if any(len(step.encode()) > LONGEST for step in Path(value).parts):
        raise UserError(f"out: {abridged(str(value))} holds a name of more than {LONGEST} bytes")
    return value
