"""The catalogue: which data sets are known, what they hold, and where their files are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from consilience.environment import Environment
from consilience.errors import unknown

Format = Literal["sample", "idx", "emnist", "cifar", "tiny-imagenet", "femnist"]


@dataclass(frozen=True)
class PublishedFile:
    """One file to download.

    Attributes:
        path: Where it is kept, relative to the data directory.
        url: Where it is published.
        digest: `md5:HEX` or `sha256:HEX` as published, None where no digest is published.
        size: Bytes, None where unknown.
    """

    path: str
    url: str
    digest: str | None
    size: int | None

    @property
    def name(self) -> str:
        """The file's name, on the server and here."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Source:
    """One known data set.

    Attributes:
        name: What `load` calls it.
        description: One line for a listing.
        classes: Number of classes.
        shape: Channels, height and width of one image.
        training_rows: Published number of training images, None where it varies.
        test_rows: Published number of test images, None where it varies.
        licence: Licence or origin.
        format: How the files are read.
        folder: Folder of the files, relative to the data directory.
        members: Files that must be in the folder (or, as NAME.gz, compressed there), training before test.
        files: What is published. One archive if `inside` is set, the members themselves otherwise.
        inside: Folder of the members inside the published archive.
        label_bytes: For `cifar`, how many label bytes open a row; the last of them is the class.
        first_label: Published number of the first class.
    """

    name: str
    description: str
    classes: int
    shape: tuple[int, int, int]
    training_rows: int | None
    test_rows: int | None
    licence: str
    format: Format
    folder: str = ""
    members: tuple[str, ...] = ()
    files: tuple[PublishedFile, ...] = ()
    inside: str | None = None
    label_bytes: int = 1
    first_label: int = 0


def find(name: str) -> Source:
    """The known data set of that name; an unknown one is an error that names the nearest."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def data_directory(root: Path | None = None) -> Path:
    """Where data sets are kept: `root`, else the variable CONSILIENCE_DATA, else the user's cache."""
    return root if root is not None else Environment().data.expanduser()


def _idx_members(prefix: str, test: str) -> tuple[str, ...]:
    return tuple(
        f"{prefix}{split}-{part}-ubyte"
        for split in ("train", test)
        for part in ("images-idx3", "labels-idx1")
    )


def _idx_source(
    name: str, description: str, licence: str, base: str, published: tuple[tuple[str, int], ...]
) -> Source:
    members = _idx_members("", "t10k")
    files = tuple(
        PublishedFile(f"{name}/{member}.gz", f"{base}/{member}.gz", f"md5:{md5}", size)
        for member, (md5, size) in zip(members, published, strict=True)
    )
    return Source(
        name,
        description,
        10,
        (1, 28, 28),
        60_000,
        10_000,
        licence,
        "idx",
        folder=name,
        members=members,
        files=files,
    )


def _emnist_source(split: str, contents: str, classes: int, training_rows: int, test_rows: int) -> Source:
    archive = PublishedFile(
        "emnist/gzip.zip",
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        561_753_746,
    )
    return Source(
        name=f"emnist-{split}",
        description=f"EMNIST {split}: {contents}",
        classes=classes,
        shape=(1, 28, 28),
        training_rows=training_rows,
        test_rows=test_rows,
        licence="Cohen et al. 2017, from NIST Special Database 19",
        format="emnist",
        folder="emnist",
        members=_idx_members(f"emnist-{split}-", "test"),
        files=(archive,),
        inside="gzip",
        first_label=1 if split == "letters" else 0,
    )


_CATALOGUE = (
    Source(
        name="mnist-sample",
        description="Handwritten digits, a balanced tenth of MNIST that comes with the package",
        classes=10,
        shape=(1, 28, 28),
        training_rows=6_000,
        test_rows=1_000,
        licence="LeCun, Cortes, Burges; CC BY-SA 3.0",
        format="sample",
    ),
    _idx_source(
        "mnist",
        "Handwritten digits",
        "LeCun, Cortes, Burges; CC BY-SA 3.0",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    _idx_source(
        "fashion-mnist",
        "Photographs of clothes",
        "Zalando; MIT",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        (
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
    _emnist_source("balanced", "digits and letters, as many of each", 47, 112_800, 18_800),
    _emnist_source("byclass", "digits, upper- and lower-case letters", 62, 697_932, 116_323),
    _emnist_source("bymerge", "digits and letters, look-alike cases merged", 47, 697_932, 116_323),
    _emnist_source("digits", "digits, as many of each", 10, 240_000, 40_000),
    _emnist_source("letters", "letters, both cases in one class", 26, 124_800, 20_800),
    _emnist_source("mnist", "digits, as many rows as MNIST", 10, 60_000, 10_000),
    Source(
        name="cifar10",
        description="Small colour photographs of 10 kinds of things",
        classes=10,
        shape=(3, 32, 32),
        training_rows=50_000,
        test_rows=10_000,
        licence="Krizhevsky 2009",
        format="cifar",
        folder="cifar-10-batches-bin",
        members=(*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
        files=(
            PublishedFile(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
            ),
        ),
        inside="cifar-10-batches-bin",
    ),
    Source(
        name="cifar100",
        description="Small colour photographs of 100 kinds of things (the fine labels)",
        classes=100,
        shape=(3, 32, 32),
        training_rows=50_000,
        test_rows=10_000,
        licence="Krizhevsky 2009",
        format="cifar",
        folder="cifar-100-binary",
        members=("train.bin", "test.bin"),
        files=(
            PublishedFile(
                "cifar-100-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        inside="cifar-100-binary",
        label_bytes=2,
    ),
    Source(
        name="tiny-imagenet",
        description="ImageNet photographs of 200 classes at 64 x 64; the validation images are the test set",
        classes=200,
        shape=(3, 64, 64),
        training_rows=100_000,
        test_rows=10_000,
        licence="Stanford CS231n, from ImageNet (research only)",
        format="tiny-imagenet",
        folder="tiny-imagenet-200",
        members=("wnids.txt", "val/val_annotations.txt"),
        files=(
            PublishedFile(
                "tiny-imagenet-200.zip",
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
            ),
        ),
        inside="tiny-imagenet-200",
    ),
    Source(
        name="femnist",
        description="Handwritten digits and letters by writer, as LEAF prepares them",
        classes=62,
        shape=(1, 28, 28),
        training_rows=None,
        test_rows=None,
        licence="Caldas et al. 2018 (LEAF), from NIST Special Database 19",
        format="femnist",
        folder="femnist",
    ),
)

SOURCES: Mapping[str, Source] = MappingProxyType({source.name: source for source in _CATALOGUE})
