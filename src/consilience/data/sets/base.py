"""The contract of a known data set: what it holds, which files are published, how it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from consilience.data.dataset import Dataset
from consilience.environment import Environment


@dataclass(frozen=True)
class PublishedFile:
    """One file to download.

    Attributes:
        path: Where it is kept, relative to the data directory.
        url: Where it is published.
        digest: `md5:HEX` or `sha256:HEX` as published, None where no digest is published.
        size: The number of bytes, None where unknown.
    """

    path: str
    url: str
    digest: str | None
    size: int | None

    @property
    def name(self) -> str:
        """The file's name, on the server and here."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One known data set.

    Attributes:
        name: What `load` calls it.
        description: One line for a listing.
        classes: The number of classes.
        shape: The channels, height and width of one image.
        training_rows: The published number of training images, None where it varies.
        test_rows: The published number of test images, None where it varies.
        licence: The licence or origin.
        files: What can be downloaded.
    """

    name: str
    description: str
    classes: int
    shape: tuple[int, int, int]
    training_rows: int | None
    test_rows: int | None
    licence: str
    files: tuple[PublishedFile, ...] = ()

    @abstractmethod
    def present(self, root: Path) -> bool:
        """Whether the data directory `root` holds it."""

    @abstractmethod
    def read(self, root: Path) -> Dataset:
        """The whole data set, read from the data directory `root`.

        Raises:
            UserError: A file is missing or damaged.
        """

    def advice(self, root: Path) -> str | None:
        """What to do by hand to have it in the data directory `root`; None where it can be downloaded."""
        return None


def data_directory(root: Path | None = None) -> Path:
    """Where data sets are kept: `root`, else the variable CONSILIENCE_DATA, else the user's cache."""
    return root if root is not None else Environment().data.expanduser()
