"""Data sets of images whose files are read from their folder or from the archive they are published in."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from consilience.data.dataset import Dataset
from consilience.data.sets.arrays import Split
from consilience.data.sets.base import Source
from consilience.data.storage import Store, blame, missing, opened

PER_ROW, BESIDE = 16, 1 << 20
"""How many bytes there may be for an image beside its pixels, and in a file beside its images."""


@dataclass(frozen=True, kw_only=True)
class Published(Source):
    """A data set that is published as one archive, or as files that are kept as they are.

    Attributes:
        folder: The folder of the files, relative to the data directory.
        members: Which files must be in the folder (or, as NAME.gz, compressed there), training before test.
        inside: The folder of the members inside the one archive that is published; None where the members
            themselves are.
    """

    folder: str
    members: tuple[str, ...]
    inside: str | None = None

    @abstractmethod
    def splits(self, store: Store) -> tuple[Split, Split]:
        """The training and the test split from the published files."""

    def present(self, root: Path) -> bool:
        return self.locate(root) is not None

    def locate(self, root: Path) -> Path | None:
        """The folder that holds every member, else the published archive, else None."""
        if self._first_absent(root) is None:
            return root / self.folder
        archive = self._archive(root)
        return archive if archive is not None and archive.is_file() else None

    def read(self, root: Path) -> Dataset:
        place = self.locate(root)
        if place is None:
            expected = (self._first_absent(root), self._archive(root))
            raise missing(self.name, *(path for path in expected if path is not None))
        with opened(self.name, place, self.inside, self.members, self.most) as store:
            return self.checked(place, *self.splits(store))

    @property
    def most(self) -> int:
        """How many bytes a file may have, decompressed: as many as the whole data set."""
        rows = (self.training_rows or 0) + (self.test_rows or 0)
        return rows * (math.prod(self.shape) + PER_ROW) + BESIDE

    def checked(self, place: Path, train: Split, test: Split) -> Dataset:
        """The two splits as a data set, if they have the published numbers of rows and shape of images.

        Args:
            place: Where they were read from, for the text of an error.
            train: Training images and classes.
            test: Test images and classes.
        """
        for (images, _), rows in ((train, self.training_rows), (test, self.test_rows)):
            with blame(self.name, place):
                if images.shape != (rows, *self.shape):
                    raise ValueError(f"images of shape {images.shape}, expected {(rows, *self.shape)}")
        return Dataset.from_arrays(self.name, *train, *test, classes=self.classes)

    def _archive(self, root: Path) -> Path | None:
        return None if self.inside is None else root / self.files[0].path

    def _first_absent(self, root: Path) -> Path | None:
        for member in self.members:
            plain, packed = root / self.folder / member, root / self.folder / f"{member}.gz"
            if not plain.is_file() and not packed.is_file():
                return packed if self.inside is None else plain
        return None
