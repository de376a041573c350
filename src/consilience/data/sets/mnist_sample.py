"""A balanced tenth of MNIST that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import final

from consilience.data.dataset import Dataset
from consilience.data.sets.arrays import read_arrays
from consilience.data.sets.base import Source

MOST = 10_000_000
"""How many bytes the archives that come with the package may have, decompressed."""


@final
@dataclass(frozen=True, kw_only=True)
class Sample(Source):
    """A data set that comes with the package, as one NumPy archive."""

    def present(self, root: Path) -> bool:
        return True

    def read(self, root: Path) -> Dataset:
        sample = resources.files("consilience.data") / "sample" / f"{self.name}.npz"
        with sample.open("rb") as file:
            train, test = read_arrays(file, MOST)
        return Dataset.from_arrays(self.name, *train, *test, classes=self.classes)


MNIST_SAMPLE = Sample(
    name="mnist-sample",
    description="Handwritten digits, a balanced tenth of MNIST that comes with the package",
    classes=10,
    shape=(1, 28, 28),
    training_rows=6_000,
    test_rows=1_000,
    licence="LeCun, Cortes, Burges; CC BY-SA 3.0",
)
