"""VGG-11 for small images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.models.vgg import VGG


@final
@dataclass(frozen=True)
class VGG11(VGG):
    """VGG-11 for 32x32 images, with batch normalisation unless told otherwise (SWA, GAMF, NIID-Bench)."""

    name: ClassVar[str] = "vgg11"
    blocks: ClassVar[tuple[tuple[int, ...], ...]] = ((64,), (128,), (256, 256), (512, 512), (512, 512))
