"""What can be done to the messages of any method: one idea a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.plugins import registry
from consilience.transforms.base import Transform as Transform
from consilience.transforms.clipped import Clipped as Clipped
from consilience.transforms.compressed import Compressed as Compressed
from consilience.transforms.noised import Noised as Noised

TRANSFORMS = registry(globals(), Transform, "transform")
"""The transforms, by the names that configurations use."""
