"""Mirrored images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.learning.augmentations.base import Augmentation
from consilience.learning.randomness import uniforms


@final
@dataclass(frozen=True)
class Flip(Augmentation):
    """Some images are mirrored.

    Attributes:
        axis: Whether left and right are exchanged, or top and bottom.
        probability: How likely that is for an image.
    """

    name: ClassVar[str] = "flip"

    axis: Literal["horizontal", "vertical"] = "horizontal"
    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise UserError(f"flip: probability must be from 0 to 1, not {self.probability}")

    def __call__(self, inputs: Tensor, key: Tensor) -> Tensor:
        drawn = uniforms(key, 0, torch.empty(len(inputs), device=inputs.device))
        chosen = drawn < self.probability
        mirrored = inputs.flip(-1 if self.axis == "horizontal" else -2)
        return torch.where(chosen.reshape(-1, *[1] * (inputs.ndim - 1)), mirrored, inputs)

    def refuse(self, shape: tuple[int, ...]) -> str | None:
        return None if len(shape) == 3 else f"it takes images, not inputs of shape {shape}"
