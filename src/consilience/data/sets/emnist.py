"""EMNIST: handwritten digits and letters, in the six splits of its authors."""

from __future__ import annotations

from consilience.data.sets.base import PublishedFile
from consilience.data.sets.idx import Idx, idx_members

ARCHIVE = PublishedFile(
    "emnist/gzip.zip",
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    561_753_746,
)


def _emnist(
    split: str, contents: str, classes: int, training_rows: int, test_rows: int, first_label: int = 0
) -> Idx:
    return Idx(
        name=f"emnist-{split}",
        description=f"EMNIST {split}: {contents}",
        classes=classes,
        shape=(1, 28, 28),
        training_rows=training_rows,
        test_rows=test_rows,
        licence="Cohen et al. 2017, from NIST Special Database 19",
        folder="emnist",
        members=idx_members(f"emnist-{split}-", "test"),
        files=(ARCHIVE,),
        inside="gzip",
        first_label=first_label,
        transposed=True,
    )


EMNIST_BALANCED = _emnist("balanced", "digits and letters, as many of each", 47, 112_800, 18_800)
EMNIST_BYCLASS = _emnist("byclass", "digits, upper- and lower-case letters", 62, 697_932, 116_323)
EMNIST_BYMERGE = _emnist("bymerge", "digits and letters, look-alike cases merged", 47, 697_932, 116_323)
EMNIST_DIGITS = _emnist("digits", "digits, as many of each", 10, 240_000, 40_000)
EMNIST_LETTERS = _emnist("letters", "letters, both cases in one class", 26, 124_800, 20_800, first_label=1)
EMNIST_MNIST = _emnist("mnist", "digits, as many rows as MNIST", 10, 60_000, 10_000)
