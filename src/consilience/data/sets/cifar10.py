"""CIFAR-10: small colour photographs of 10 kinds of things."""

from __future__ import annotations

from consilience.data.sets.base import PublishedFile
from consilience.data.sets.cifar import SHAPE, Cifar

CIFAR10 = Cifar(
    name="cifar10",
    description="Small colour photographs of 10 kinds of things",
    classes=10,
    shape=SHAPE,
    training_rows=50_000,
    test_rows=10_000,
    licence="Krizhevsky 2009",
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
    label_bytes=1,
)
