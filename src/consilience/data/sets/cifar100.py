"""CIFAR-100: small colour photographs of 100 kinds of things, with the fine labels."""

from __future__ import annotations

from consilience.data.sets.base import PublishedFile
from consilience.data.sets.cifar import SHAPE, Cifar

CIFAR100 = Cifar(
    name="cifar100",
    description="Small colour photographs of 100 kinds of things (the fine labels)",
    classes=100,
    shape=SHAPE,
    training_rows=50_000,
    test_rows=10_000,
    licence="Krizhevsky 2009",
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
)
