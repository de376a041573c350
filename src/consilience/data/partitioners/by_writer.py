"""A client for each writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.data.partitioners.grouping import ByGroup


@final
@dataclass(frozen=True)
class ByWriter(ByGroup):
    """One client for each writer (LEAF's FEMNIST); fewer clients are whole writers chosen at random."""

    name: ClassVar[str] = "by_writer"
    groups_are: ClassVar[str] = "writers"
    unknown: ClassVar[str] = "the data set does not say who wrote its rows; use one with groups"
