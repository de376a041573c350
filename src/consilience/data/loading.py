"""Known data sets by name, from the data directory or from the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from consilience.data.dataset import Dataset
from consilience.data.sets import SOURCES, Source, data_directory, find


@dataclass(frozen=True)
class Listing:
    """One line of the catalogue: the data set and whether its files are in the data directory."""

    source: Source
    present: bool


def load(name: str, root: Path | None = None) -> Dataset:
    """The known data set of a name, whole in memory.

    Args:
        name: A name of the catalogue, such as `mnist-sample` (comes with the package) or `cifar10`.
        root: The data directory; by default the variable CONSILIENCE_DATA or the user's cache directory.
    """
    return find(name).read(data_directory(root))


def describe(root: Path | None = None) -> list[Listing]:
    """Every known data set, and whether the data directory holds it."""
    directory = data_directory(root)
    return [Listing(source, source.present(directory)) for source in SOURCES.values()]
