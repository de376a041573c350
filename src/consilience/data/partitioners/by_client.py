"""The clients that the data come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.data.partitioners.grouping import ByGroup


@final
@dataclass(frozen=True)
class ByClient(ByGroup):
    """Each client its own rows, as the data set says; fewer clients are some of them chosen at random."""

    name: ClassVar[str] = "by_client"
    groups_are: ClassVar[str] = "in the data"
    unknown: ClassVar[str] = "the data set does not say who holds its rows; see Dataset.from_clients"
