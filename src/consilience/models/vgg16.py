"""VGG-16 for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.models.vgg import VGG


@final
@dataclass(frozen=True)
class VGG16(VGG):
    """VGG-16 for 32x32 images, with batch normalisation unless told otherwise (SWA's ablation)."""

    name: ClassVar[str] = "vgg16"
    blocks: ClassVar[tuple[tuple[int, ...], ...]] = (
        (64, 64),
        (128, 128),
        (256, 256, 256),
        (512, 512, 512),
        (512, 512, 512),
    )
