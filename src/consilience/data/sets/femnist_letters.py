"""The letters of FEMNIST in 26 classes: what stands in for EMNIST-letters where only FEMNIST is at hand.

Upper- and lower-case letters share a class, as in EMNIST-letters. Writers, images and their background are
FEMNIST's, so this is another data set than EMNIST-letters, and has another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.data.sets.base import Source
from consilience.data.sets.femnist import FEMNIST

DIGITS, LETTERS = 10, 26
"""Classes of FEMNIST: the digits come first, then capital letters, then small ones."""


@final
@dataclass(frozen=True, kw_only=True)
class FemnistLetters(Source):
    """FEMNIST without its digits."""

    def present(self, root: Path) -> bool:
        return FEMNIST.present(root)

    def read(self, root: Path) -> Dataset:
        whole = FEMNIST.read(root)
        train, test = whole.targets >= DIGITS, whole.test_targets >= DIGITS
        assert isinstance(whole.inputs, Tensor)  # it is held in memory, with its writers
        assert isinstance(whole.test_inputs, Tensor)
        assert whole.groups is not None
        assert whole.test_groups is not None
        return Dataset(
            self.name,
            whole.inputs[train],
            (whole.targets[train] - DIGITS) % LETTERS,
            whole.test_inputs[test],
            (whole.test_targets[test] - DIGITS) % LETTERS,
            LETTERS,
            groups=whole.groups[train],
            test_groups=whole.test_groups[test],
        )

    def advice(self, root: Path) -> str | None:
        return FEMNIST.advice(root)


FEMNIST_LETTERS = FemnistLetters(
    name="femnist-letters",
    description="FEMNIST's letters, both cases in one class",
    classes=LETTERS,
    shape=FEMNIST.shape,
    training_rows=None,
    test_rows=None,
    licence=FEMNIST.licence,
)
