"""Load a known data set by name, from the data directory or from the package."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from consilience.data.dataset import Dataset
from consilience.data.femnist import locate_femnist, read_femnist
from consilience.data.formats import Split, read_cifar, read_idx, read_tiny_imagenet
from consilience.data.sources import SOURCES, Source, data_directory, find
from consilience.data.storage import blame, locate, opened

ARRAYS = ("inputs", "targets", "test_inputs", "test_targets")
TINY_IMAGENET_CACHE = "tiny-imagenet-200-decoded.npz"


@dataclass(frozen=True)
class Listing:
    """One line of the catalogue: the data set and whether its files are in the data directory."""

    source: Source
    present: bool


def load(name: str, root: Path | None = None) -> Dataset:
    """The data set of that name, whole in memory.

    Args:
        name: A name of the catalogue, such as `mnist-sample` (comes with the package) or `cifar10`.
        root: The data directory; by default the variable CONSILIENCE_DATA or the user's cache directory.
    """
    return read(find(name), data_directory(root))


def describe(root: Path | None = None) -> list[Listing]:
    """Every known data set, and whether the data directory holds it."""
    directory = data_directory(root)
    return [Listing(source, _present(source, directory)) for source in SOURCES.values()]


def read(source: Source, root: Path) -> Dataset:
    """The data set of `source` from the data directory `root`, with as many rows as published."""
    if source.format == "sample":
        return _read_sample(source)
    if source.format == "femnist":
        return read_femnist(root)
    if source.format == "tiny-imagenet" and (root / TINY_IMAGENET_CACHE).is_file():
        return _read_cache(source, root / TINY_IMAGENET_CACHE)
    with opened(source, root) as store:
        if source.format == "cifar":
            *batches, last = source.members
            train = read_cifar(store, tuple(batches), source.label_bytes, source.classes)
            test = read_cifar(store, (last,), source.label_bytes, source.classes)
        elif source.format == "tiny-imagenet":
            train, test = read_tiny_imagenet(store)
        else:
            images, labels, test_images, test_labels = source.members
            transposed = source.format == "emnist"
            first = source.first_label
            train = read_idx(store, images, labels, source.classes, first=first, transposed=transposed)
            test = read_idx(
                store, test_images, test_labels, source.classes, first=first, transposed=transposed
            )
        dataset = _checked(source, store.place, train, test)
    if source.format == "tiny-imagenet":
        # Decoding takes a minute. A directory that cannot be written to only costs that minute again.
        with contextlib.suppress(OSError):
            _write_cache(root / TINY_IMAGENET_CACHE, train, test)
    return dataset


def _present(source: Source, root: Path) -> bool:
    if source.format == "sample":
        return True
    if source.format == "femnist":
        return locate_femnist(root) is not None
    if source.format == "tiny-imagenet" and (root / TINY_IMAGENET_CACHE).is_file():
        return True
    return locate(source, root) is not None


def _read_sample(source: Source) -> Dataset:
    sample = resources.files("consilience.data") / "sample" / f"{source.name}.npz"
    with sample.open("rb") as file:
        inputs, targets, test_inputs, test_targets = _arrays(file)
    return Dataset.from_arrays(
        source.name, inputs, targets, test_inputs, test_targets, classes=source.classes
    )


def _read_cache(source: Source, path: Path) -> Dataset:
    with blame(source.name, path), path.open("rb") as file:
        inputs, targets, test_inputs, test_targets = _arrays(file)
        return _checked(source, path, (inputs, targets), (test_inputs, test_targets))


def _arrays(file: IO[bytes]) -> list[npt.NDArray[Any]]:
    with np.load(file, allow_pickle=False) as archive:
        return [archive[key] for key in ARRAYS]


def _checked(source: Source, place: Path, train: Split, test: Split) -> Dataset:
    """The two splits as a data set, if they have the published numbers of rows and shape of images."""
    for (images, _), rows in ((train, source.training_rows), (test, source.test_rows)):
        with blame(source.name, place):
            if images.shape != (rows, *source.shape):
                raise ValueError(f"images of shape {images.shape}, expected {(rows, *source.shape)}")
    return Dataset.from_arrays(source.name, *train, *test, classes=source.classes)


def _write_cache(path: Path, train: Split, test: Split) -> None:
    """Write whole or not at all, so that a reader never sees half a file."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez(file, inputs=train[0], targets=train[1], test_inputs=test[0], test_targets=test[1])
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
