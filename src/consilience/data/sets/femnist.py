"""FEMNIST as LEAF prepares it: its JSON files, or the same rows packed in one `femnist-*.npz`.

LEAF's images have a white background (1.0, here 255), the opposite of MNIST's; they are kept as published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from consilience.data.dataset import Dataset
from consilience.data.sets.arrays import Bytes, Labels, parse_labels
from consilience.data.sets.base import Source
from consilience.data.storage import blame, missing
from consilience.errors import UserError
from consilience.reading import arrays, content, machine_memory, parse_json

CLASSES = 62
SHAPE = (1, 28, 28)
PACKED = ("x", "y", "writer", "is_test")
"""The arrays of a packed file."""
JSON_GROWS = 32
"""How much more memory than bytes of JSON lists of numbers take, at most."""


ADVICE = (
    "femnist is not published as one file: in data/femnist of a clone of "
    "https://github.com/TalwalkarLab/leaf run `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample`, "
    "then copy data/train and data/test from there to {folder}"
)


@final
@dataclass(frozen=True, kw_only=True)
class Femnist(Source):
    """FEMNIST with the number of its writer for every row."""

    def present(self, root: Path) -> bool:
        return _locate(root) is not None

    def read(self, root: Path) -> Dataset:
        place = _locate(root)
        if place is None:
            folder = root / "femnist"
            raise missing("femnist", folder / "femnist-*.npz", folder / "train" / "*.json")
        if place.is_dir():
            return _read_leaf(place)
        rivals = _packed(place.parent)
        if len(rivals) > 1:
            names = ", ".join(path.name for path in rivals)
            raise UserError(f"femnist: {place.parent} holds {len(rivals)} packed files ({names}); keep one")
        return _read_packed(place)

    def advice(self, root: Path) -> str:
        return ADVICE.format(folder=root / "femnist")


def _locate(root: Path) -> Path | None:
    """The packed file in `femnist/` or at the top of the data directory, or the folder of LEAF's files."""
    folder = root / "femnist"
    packed = [*_packed(folder), *_packed(root)]
    if packed:
        return packed[0]
    return folder if any((folder / "train").glob("*.json")) else None


def _packed(folder: Path) -> list[Path]:
    return sorted(folder.glob("femnist-*.npz"))


def _read_packed(path: Path) -> Dataset:
    with blame("femnist", path):
        held = arrays(path, machine_memory() // 2, PACKED)
        pixels, labels, writers, is_test = (held[key] for key in PACKED)
        rows = len(pixels)
        if pixels.dtype != np.uint8 or pixels.shape != (rows, *SHAPE[1:]) or is_test.dtype != np.bool_:
            raise ValueError(f"x is {pixels.dtype} {pixels.shape} and is_test {is_test.dtype}")
        if not (labels.shape == writers.shape == is_test.shape == (rows,)):
            raise ValueError(
                f"{len(labels)} labels, {len(writers)} writers, {len(is_test)} flags for {rows} images"
            )
        numbered = parse_labels(labels, CLASSES)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    images = pixels[:, None]
    return Dataset.from_arrays(
        "femnist",
        images[train],
        numbered[train],
        images[test],
        numbered[test],
        classes=CLASSES,
        groups=writers[train],
        test_groups=writers[test],
    )


def _read_leaf(folder: Path) -> Dataset:
    numbers: dict[str, int] = {}
    inputs, targets, groups = _leaf_split(folder / "train", numbers)
    test_inputs, test_targets, test_groups = _leaf_split(folder / "test", numbers)
    return Dataset.from_arrays(
        "femnist",
        inputs,
        targets,
        test_inputs,
        test_targets,
        classes=CLASSES,
        groups=groups,
        test_groups=test_groups,
    )


def _leaf_split(folder: Path, numbers: dict[str, int]) -> tuple[Bytes, Labels, Labels]:
    """Images, labels and writers of every file, sorted by name; writers new to `numbers` are numbered on."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise missing("femnist", folder / "*.json")
    parts: list[tuple[str, Bytes, Labels]] = []
    for path in files:
        with blame("femnist", path):
            parts.extend(_leaf_users(parse_json(content(path, machine_memory() // JSON_GROWS))))
    for user, _, _ in parts:
        numbers.setdefault(user, len(numbers))
    writers = [np.full(len(labels), numbers[user], np.int64) for user, _, labels in parts]
    pixels, labels = [part[1] for part in parts], [part[2] for part in parts]
    return np.concatenate(pixels), np.concatenate(labels), np.concatenate(writers)


def _leaf_users(file: dict[str, Any]) -> Iterator[tuple[str, Bytes, Labels]]:
    """Every user of one file with its images and labels; what does not fit is a ValueError or KeyError."""
    for user, count in zip(file["users"], file["num_samples"], strict=True):
        rows = file["user_data"][user]
        values = np.asarray(rows["x"], np.float64)
        if values.size != count * math.prod(SHAPE) or not len(rows["x"]) == len(rows["y"]) == count:
            found = f"x of shape {values.shape} and {len(rows['y'])} labels"
            raise ValueError(f"user {user} has {found}, expected {count} rows of {math.prod(SHAPE)}")
        if not (values.min(initial=0.0) >= 0 and values.max(initial=0.0) <= 1):
            raise ValueError(f"user {user} has pixels outside [0, 1]")
        pixels = np.rint(255 * values).astype(np.uint8).reshape(-1, *SHAPE)
        yield user, pixels, parse_labels(np.asarray(rows["y"], np.int64), CLASSES)


FEMNIST = Femnist(
    name="femnist",
    description="Handwritten digits and letters by writer, as LEAF prepares them",
    classes=CLASSES,
    shape=SHAPE,
    training_rows=None,
    test_rows=None,
    licence="Caldas et al. 2018 (LEAF), from NIST Special Database 19",
)
