"""How training inputs are varied: one way a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.learning.augmentations.base import Augmentation as Augmentation
from consilience.learning.augmentations.base import Own as Own
from consilience.learning.augmentations.crop import Crop as Crop
from consilience.learning.augmentations.flip import Flip as Flip
from consilience.plugins import registry

AUGMENTATIONS = registry(globals(), Augmentation, "augmentation")
"""The augmentations, by the names that configurations use."""
