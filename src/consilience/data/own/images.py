"""Folders of images, which are read as batches need them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consilience.data.dataset import Dataset, with_outputs
from consilience.data.own.rows import Column, kept_back, of_clients
from consilience.data.storage import folder_of, readable
from consilience.data.stored import Stored
from consilience.errors import UserError
from consilience.types import IntArray

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
MANY = 16
"""So many images are read by several threads."""


@final
class Pictures(Stored):
    """Image files, as uint8 with channels first.

    Args:
        paths: Where the images are, one a row.
        size: The height and width to which they are scaled; None: all have those of the first.
        mode: What Pillow calls their colours: L for grey ones, RGB; None: as the first.
    """

    def __init__(
        self, paths: Sequence[Path], size: tuple[int, int] | None = None, mode: str | None = None
    ) -> None:
        self.paths, self.scaled = list(paths), size is not None
        with _opened(self.paths[0]) as first:
            self.mode = mode or ("L" if first.mode in ("1", "L", "I;16") else "RGB")
            height, width = size or (first.height, first.width)
        self.shape = torch.Size((len(self.paths), len(self.mode), height, width))
        self.dtype = torch.uint8

    def rows(self, numbers: IntArray) -> Tensor:
        chosen = [self.paths[row] for row in numbers.tolist()]
        if len(chosen) < MANY or torch.get_num_threads() == 1:
            pixels = [self._pixels(path) for path in chosen]
        else:
            with ThreadPoolExecutor(torch.get_num_threads()) as readers:
                pixels = list(readers.map(self._pixels, chosen))
        blank = np.empty((0, *self.shape[1:]), dtype=np.uint8)
        return torch.from_numpy(np.stack(pixels) if pixels else blank)

    def _pixels(self, path: Path) -> npt.NDArray[np.uint8]:
        _, _, height, width = self.shape
        with readable(path):
            with _opened(path) as file:
                image = file.convert(self.mode)
            scaled = image.resize((width, height)) if self.scaled else image
            pixels = np.asarray(scaled, dtype=np.uint8)
        if pixels.shape[:2] != (height, width):
            found, wanted = f"{pixels.shape[0]}x{pixels.shape[1]}", f"{height}x{width}"
            raise UserError(
                f"{path} is {found}, but the first image is {wanted}; say size=({height}, {width})"
            )
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def of_images(
    folder: str | Path,
    test: str | Path | None,
    by_client: bool,
    holdout: float,
    size: Sequence[int] | None,
    name: str | None,
) -> Dataset:
    """The data set of `Dataset.from_images`, whose arguments these are."""
    title = name or folder_of(folder).name
    paths, labels, owners = _listed(Path(folder), by_client)
    if test is None:
        stays, back = kept_back(title, len(paths), holdout, owners)
        test_paths, test_labels = [paths[row] for row in back], labels[back]
        paths, labels = [paths[row] for row in stays], labels[stays]
        owners, test_owners = (owners[stays], owners[back]) if owners is not None else (None, None)
    else:
        test_paths, test_labels, test_owners = _listed(Path(test), by_client)
    classes = np.unique(labels)
    strangers = sorted(set(test_labels.tolist()) - set(classes.tolist()))
    if strangers:
        raise UserError(f"{title}: the class {strangers[0]} has test images and none to train on")
    if size is not None and (
        not isinstance(size, tuple | list | np.ndarray)
        or len(size) != 2
        or not all(isinstance(side, int | np.integer) and side > 0 for side in size)
    ):
        raise UserError(f"{title}: size is (height, width), two whole numbers, not {size!r}")
    scale = None if size is None else (int(size[0]), int(size[1]))
    inputs = Pictures(paths, scale)
    targets, test_targets = (
        torch.from_numpy(np.searchsorted(classes, column).astype(np.int64))
        for column in (labels, test_labels)
    )
    return with_outputs(
        Dataset,
        len(classes),
        None,
        name=title,
        inputs=inputs,
        targets=targets,
        test_inputs=Pictures(test_paths, (inputs.shape[2], inputs.shape[3]) if scale else None, inputs.mode),
        test_targets=test_targets,
        **of_clients(title, owners, test_owners),
    )


def _listed(folder: Path, by_client: bool) -> tuple[list[Path], Column, Column | None]:
    """The images in `class/` or `client/class/`, in order, with their classes and clients."""
    levels = 2 if by_client else 1
    pattern = "/".join(["*"] * levels) + "/*"
    paths = [path for path in sorted(folder.glob(pattern)) if path.suffix.lower() in SUFFIXES]
    if not paths:
        wanted = "CLIENT/CLASS/IMAGE" if by_client else "CLASS/IMAGE"
        raise UserError(f"{folder}: there are no images; they should be in {wanted}")
    owners = np.array([path.parent.parent.name for path in paths]) if by_client else None
    return paths, np.array([path.parent.name for path in paths]), owners


def _opened(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UserError("to read images takes Pillow: pip install 'consilience[images]'") from None
    with readable(path):
        return Image.open(path)
