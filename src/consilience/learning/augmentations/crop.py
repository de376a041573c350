"""Images cut at random places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.learning.augmentations.base import Augmentation
from consilience.learning.randomness import uniforms


@final
@dataclass(frozen=True)
class Crop(Augmentation):
    """Images grow by `padding` pixels on every side and are cut to their size at a random place.

    What is added mirrors the image at its edge: so it does not matter what black is after normalisation.

    Attributes:
        padding: How far images move at most.
    """

    name: ClassVar[str] = "crop"

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise UserError(f"crop: padding must be at least 0, not {self.padding}")

    def __call__(self, inputs: Tensor, key: Tensor) -> Tensor:
        choices = 2 * self.padding + 1
        # In float64, in which no product is rounded to a whole number.
        drawn = uniforms(key, 0, torch.empty(len(inputs), 2, dtype=torch.float64, device=inputs.device))
        moves = (drawn * choices).floor().to(torch.int64) - self.padding
        return _moved(_moved(inputs, moves[:, 0], -2), moves[:, 1], -1)

    def refuse(self, shape: tuple[int, ...]) -> str | None:
        if len(shape) != 3:
            return f"it takes images, not inputs of shape {shape}"
        if self.padding >= min(shape[1:]):
            return f"padding {self.padding} is too much for images of {shape[1]}x{shape[2]}"
        return None


def _moved(images: Tensor, moves: Tensor, axis: int) -> Tensor:
    """Images of which each is moved along an axis; what comes in is mirrored at the edge."""
    last = images.shape[axis] - 1
    places = torch.arange(last + 1, device=images.device) + moves[:, None]
    places = last - (last - places.abs()).abs()
    form = [len(moves), 1, 1, 1]
    form[axis] = last + 1
    return images.gather(axis, places.reshape(form).expand(images.shape))
